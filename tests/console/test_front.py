"""The front page: a stream of this very server with two readers, and how to begin."""

import subprocess
import sys

from playwright.sync_api import expect

from tests.console.conftest import Console


def test_two_readers_follow_what_is_appended_and_one_goes_on_after_a_cut(console: Console) -> None:
    page = console.page
    page.goto(console.server.base_url + "/")
    first, second = page.locator("#shown-1"), page.locator("#shown-2")
    page.get_by_label("A line to append").fill("one")
    page.get_by_role("button", name="Append").click()
    for shown in (first, second):
        expect(shown).to_have_text("one")
    console.check_accessible()
    page.get_by_role("button", name="Cut its connection").click()
    page.get_by_label("A line to append").fill("two")
    page.get_by_role("button", name="Append").click()
    expect(first).to_have_text("one two")
    expect(second).to_have_text("one")
    page.get_by_role("button", name="Connect it again").click()
    expect(second).to_have_text("one two")
    expect(page.get_by_role("status")).to_contain_text("goes on from offset 0000000000000004")


def test_what_the_front_page_prints_runs_on_this_server(console: Console) -> None:
    page = console.page
    page.goto(console.server.base_url + "/")
    page.get_by_role("button", name="Python").click()
    code = page.locator("#code").inner_text()
    assert console.server.base_url in code
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "hello" in ran.stdout
    page.get_by_role("button", name="curl").click()
    shown = page.locator("#code").inner_text().replace("/stream/first", "/stream/second")
    commands = shown.replace("curl ", "curl --fail-with-body --max-time 5 ").replace("&live=sse", "")
    ran = subprocess.run(["sh", "-ec", commands], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.endswith("hello ")

"""What can be done in the console is first shown as code, and then done."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.conformance.servers import ROOT, Server, node
from tests.console.conftest import Console, make_stream, send, until


def read(server: Server, path: str) -> Any:
    with urllib.request.urlopen(server.base_url + path) as answer:
        return json.load(answer)


def dialog(page: Page, action: str) -> Locator:
    button = page.get_by_role("button", name=action, exact=True)
    if not button.is_visible():
        page.get_by_text("More", exact=True).click()
    button.click()
    return page.get_by_role("dialog")


def test_a_stream_is_created(console: Console) -> None:
    name = f"made here/{uuid.uuid4().hex[:8]}"
    page = console.open("#/streams")
    shown = dialog(page, "Create a stream")
    shown.get_by_label("Name").fill(name)
    shown.get_by_label("Time to live").fill("3600")
    expect(shown.locator("pre")).to_contain_text(f"/v1/stream/{name.replace(' ', '%20')}")
    expect(shown.locator("pre")).to_contain_text("Stream-TTL: 3600")
    console.check_accessible()
    shown.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    status, headers = send(console.server, "HEAD", f"/v1/stream/{urllib.request.quote(name)}")  # type: ignore[attr-defined]
    assert (status, headers["stream-ttl"]) == (200, "3600")


def test_messages_are_appended_by_hand_and_from_a_file(console: Console, tmp_path: Path) -> None:
    path = make_stream(console.server, [])
    page = console.open_stream(path)
    shown = dialog(page, "Append")
    shown.locator("textarea").fill("{")
    shown.get_by_role("button", name="Append", exact=True).click()
    expect(shown.get_by_role("alert")).to_contain_text("JSON")
    shown.locator("textarea").fill('[{"it\'s": "one"}, 2]')
    shown.get_by_role("button", name="Append", exact=True).click()
    expect(shown.get_by_text("Done: 204")).to_be_visible()
    file = tmp_path / "more.json"
    file.write_text("[3, 4]")
    shown.locator("input[type=file]").set_input_files(file)
    expect(shown.locator("pre")).to_contain_text("--data-binary @'more.json'")
    shown.get_by_role("button", name="Append", exact=True).click()
    expect(page.locator("#counted")).to_contain_text("4 messages shown")
    assert read(console.server, path) == [{"it's": "one"}, 2, 3, 4]


def test_an_action_waits_until_the_stream_is_known(console: Console) -> None:
    path = make_stream(console.server, [])
    held: list[Route] = []
    console.page.route("**/v1/stats?*", lambda route: held.append(route))  # noqa: PLW0108 - a built-in method is refused
    page = console.open_stream(path)
    page.get_by_role("button", name="Append", exact=True).click()
    expect(page.locator("#content-type")).to_have_text("…")
    expect(page.get_by_role("dialog")).to_have_count(0)
    until(page, lambda: held)
    for route in held:
        route.continue_()
    expect(page.get_by_role("dialog", name="Append")).to_be_visible()


@pytest.mark.parametrize("language", ["curl", "TypeScript", "Python"])
def test_the_shown_code_does_what_it_says(console: Console, language: str, tmp_path: Path) -> None:
    path = make_stream(console.server, [])
    page = console.open_stream(path)
    shown = dialog(page, "Append")
    shown.locator("textarea").fill('{"it\'s": "ü \\" $HOME"}')
    shown.get_by_role("button", name=language, exact=True).click()
    code = shown.locator("pre").inner_text()
    run(language, code, tmp_path)
    assert read(console.server, path) == [{"it's": 'ü " $HOME'}]


def run(language: str, code: str, directory: Path) -> None:
    if language == "TypeScript":
        (directory / "code.mjs").write_text(code)
        (directory / "node_modules").symlink_to(ROOT / "node_modules")
        command = [node(), str(directory / "code.mjs")]
    else:
        command = ["bash", "-c", code] if language == "curl" else [sys.executable, "-c", code]
    subprocess.run(
        command, check=True, cwd=directory, env=os.environ | {"PYTHONWARNINGS": "ignore"}, timeout=120
    )


def test_a_stream_is_closed(console: Console) -> None:
    path = make_stream(console.server, [1])
    page = console.open_stream(path)
    shown = dialog(page, "Close")
    shown.get_by_role("button", name="Close", exact=True).click()
    expect(page.locator("#state")).to_contain_text("closed")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Append")).to_be_disabled()
    expect(page.get_by_role("button", name="Append")).to_contain_text("the stream is closed")


def test_a_stream_is_forked_behind_the_selected_message(console: Console) -> None:
    path = make_stream(console.server, [1, 2, 3])
    page = console.open_stream(path)
    console.rows.nth(1).click()
    shown = dialog(page, "Fork")
    shown.get_by_role("button", name="Fork", exact=True).click()
    name = path.removeprefix("/v1/stream/")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{name}-fork")
    assert read(console.server, f"{path}-fork") == [1, 2]


def test_a_snapshot_is_published_in_a_bucket(console: Console) -> None:
    bucket = f"bucket-{uuid.uuid4().hex[:8]}"
    send(console.server, "PUT", f"/{bucket}")
    send(console.server, "PUT", f"/{bucket}/run", b"[1,2,3]", Content_Type="application/json")
    page = console.open_stream(f"/{bucket}/run")
    console.rows.nth(1).click()
    shown = dialog(page, "Publish a snapshot")
    shown.locator("textarea").fill('{"sum": 3}')
    shown.get_by_role("button", name="Publish", exact=True).click()
    expect(shown.get_by_text("Done: 204")).to_be_visible()
    expect(page.locator("#facts")).to_contain_text(f"snapshot at {4:016}")
    assert read(console.server, f"/{bucket}/run/snapshot/{4:016}") == {"sum": 3}


def test_a_stream_is_deleted_only_once_its_name_is_typed(console: Console) -> None:
    path = make_stream(console.server, [1])
    page = console.open_stream(path)
    shown = dialog(page, "Delete")
    button = shown.get_by_role("button", name="Delete", exact=True)
    expect(button).to_be_disabled()
    shown.get_by_label("to confirm").fill(path.removeprefix("/v1/stream/"))
    console.check_accessible()
    button.click()
    expect(page.get_by_role("heading", name="Streams")).to_be_visible()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        send(console.server, "HEAD", path)


def test_of_several_streams_one_that_is_refused_does_not_keep_the_others(console: Console) -> None:
    group = uuid.uuid4().hex[:8]
    for number in range(4):
        make_stream(console.server, [1], name=f"{group}/{number}")
    page = console.open(f"#/streams?prefix={group}/")
    refused = {"status": 503, "json": {"error": "Storage does not answer"}}
    page.route(f"**/v1/stream/{group}/1", lambda route: route.fulfill(**refused))
    for number in range(3):
        page.get_by_label(f"Choose {group}/{number}").check()
    shown = dialog(page, "Delete 3 streams…")
    expect(shown.get_by_role("listitem")).to_have_text([f"{group}/{number}" for number in range(3)])
    expect(shown.get_by_role("button", name="Delete", exact=True)).to_be_disabled()
    shown.get_by_label("to confirm").fill("3")
    console.check_accessible()
    shown.get_by_role("button", name="Delete", exact=True).click()
    expect(shown.get_by_role("status")).to_have_text("2 of 3 deleted, 1 not")
    expect(shown.get_by_role("listitem").nth(1)).to_have_text(f"{group}/1 – Storage does not answer")
    page.keyboard.press("Escape")
    expect(page.locator("tbody a")).to_have_text([f"{group}/1", f"{group}/3"])


def test_everything_is_done_with_the_keyboard_alone(console: Console) -> None:
    group = uuid.uuid4().hex[:8]
    for number in range(3):
        make_stream(console.server, list(range(5)), name=f"{group}/{number}")
    page = console.open(f"#/streams?prefix={group}")
    expect(page.locator("tbody a")).to_have_count(3)
    for _ in range(3):
        page.keyboard.press("j")
    expect(page.locator("tr.selected")).to_contain_text(f"{group}/2")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{group}/1")
    expect(console.rows).to_have_count(5)
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(".row.selected")).to_contain_text(f"{2:016}")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    console.check_accessible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("g")
    expect(page.locator(".row.selected")).to_have_count(0)
    page.get_by_role("listbox").focus()
    page.keyboard.press("End")
    expect(page.locator(".row.selected")).to_contain_text(f"{8:016}")

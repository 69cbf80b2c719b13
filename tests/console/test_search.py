"""What is looked for beyond what the page holds: messages in the whole stream, streams in all names."""

import re
import uuid

from playwright.sync_api import Route, expect

from tests.console.conftest import Console, append, make_stream, send


def test_a_filter_finds_what_the_page_does_not_hold(console: Console) -> None:
    """By text, and by a member and its value; then everything that can be done with a message is there."""
    path = make_stream(console.server, [{"n": n, "user": {"id": n % 3}} for n in range(2500)])
    page = console.open_stream(path)
    expect(page.locator("#counted")).to_have_text("1,000 messages shown")
    console.search("$.user.id=2")
    expect(page.locator("#counted")).to_contain_text("333 of 1,000 messages shown")
    page.get_by_role("button", name="Search the whole stream").click()
    expect(page.locator("#searched")).to_contain_text("833 found")
    expect(console.rows.first).to_contain_text("2")
    console.check_accessible()
    page.locator("#search").fill('"n": 7}')
    expect(page.locator("#counted")).to_contain_text("0 of 1,000 messages shown")
    page.locator("#search").fill('"n": 7,')
    page.get_by_role("button", name="Search the whole stream").click()
    console.row("7").click()
    detail = page.get_by_role("region", name="Message")
    detail.get_by_role("button", name="Copy the message").click()
    expect(detail.get_by_role("status").last).to_have_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == '{"n": 7, "user": {"id": 1}}'
    page.get_by_role("button", name="Back to the latest messages").click()
    page.get_by_role("button", name="Clear the filter").click()
    expect(page.locator("#counted")).to_have_text("1,000 messages shown")


def test_a_search_stops_and_goes_on_where_it_was(console: Console) -> None:
    path = make_stream(console.server, [{"n": n, "x": "x" * 1_500_000} for n in range(2)])
    for first in (2, 4, 6):
        append(console.server, path, [{"n": n, "x": "x" * 1_500_000} for n in (first, first + 1)])
    page = console.open_stream(path, last="1")
    expect(page.locator("#counted")).to_have_text("1 message shown")
    held: list[Route] = []
    console.search('"n":')
    page.route("**/*?offset=000*", lambda route: route.continue_() if len(held) else held.append(route))
    page.get_by_role("button", name="Search the whole stream").click()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("#searched")).to_contain_text("Searched all")
    expect(page.locator("#searched")).to_contain_text("8 found")
    assert len(held) == 1


def test_a_message_says_what_it_changes_of_its_key(console: Console) -> None:
    tasks = [("a", False), ("b", False), ("a", True)]
    written = [{"type": "task", "key": key, "value": {"title": key, "done": done}} for key, done in tasks]
    page = console.open_stream(make_stream(console.server, written))
    console.rows.nth(1).click()
    detail = page.get_by_role("region", name="Message")
    expect(detail.get_by_role("rowheader")).to_have_count(0)
    detail.get_by_role("button", name="Next").click()
    expect(detail.get_by_role("row").last).to_have_text("value.donefalsetrue")
    console.check_accessible()


def test_an_empty_stream_offers_its_first_message(console: Console) -> None:
    page = console.open_stream(make_stream(console.server, []))
    page.get_by_role("button", name="Append a message").click()
    page.get_by_role("dialog").locator("textarea").fill("[1]")
    page.get_by_role("dialog").get_by_role("button", name="Append", exact=True).click()
    expect(page.locator("#counted")).to_have_text("1 message shown")


def test_streams_are_found_by_what_their_names_contain(console: Console) -> None:
    group = uuid.uuid4().hex[:8]
    for number in range(120):
        make_stream(console.server, [], name=f"{group}/{number:03}/{'even' if number % 2 == 0 else 'odd'}")
    page = console.open(f"#/streams?prefix={group}/")
    page.get_by_label("and contains").fill("EVEN")
    expect(page.get_by_role("status")).to_have_text("50 streams on page 1")
    expect(page.get_by_role("link", name=f"{group}/098/even")).to_be_visible()
    page.get_by_role("button", name="Next page").click()
    expect(page.get_by_role("status")).to_have_text("10 streams on page 2, 60 in all")
    page.reload()
    expect(page.get_by_role("link", name=f"{group}/118/even")).to_be_visible()
    page.get_by_label("and contains").fill("neither")
    expect(page.get_by_text("No stream has a name that contains this.")).to_be_visible()
    console.check_accessible()


def test_streams_are_counted_sorted_and_chosen_by_state(console: Console) -> None:
    """Over all of them, not a page. The address opens the same."""
    group = uuid.uuid4().hex[:8]
    paths = [make_stream(console.server, [], name=f"{group}/{number:02}") for number in range(52)]
    append(console.server, paths[7], 1)
    send(console.server, "POST", paths[7], Stream_Closed="true")
    page = console.open(f"#/streams?prefix={group}/")
    said, first = page.get_by_role("status"), page.locator("tbody a").first
    page.get_by_role("button", name="Count all").click()
    expect(said).to_have_text("52 streams, page 1")
    orders = (("last write", "descending", "07"), ("last write", "ascending", "00"))
    for name, order, number in (*orders, ("stream", "ascending", "00"), ("stream", "descending", "51")):
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.get_by_role("columnheader", name=name)).to_have_attribute("aria-sort", order)
        expect(first).to_have_text(f"{group}/{number}")
    page.get_by_role("button", name="Next page").click()
    expect(said).to_have_text("52 streams, page 2")
    expect(page).to_have_url(re.compile("order=-name&after=50"))
    page.reload()
    expect(first).to_have_text(f"{group}/01")
    page.get_by_label("State").select_option("closed")
    expect(said).to_have_text("1 stream of 52")
    expect(first).to_have_text(f"{group}/07")
    console.check_accessible()

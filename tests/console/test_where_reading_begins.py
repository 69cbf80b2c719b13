"""Where the page of a stream begins to read: by its form, by its address, and anew with another token."""

import re
import uuid

import pytest
from playwright.sync_api import Page, Route, expect

from tests.console.conftest import Console, append, make_stream, send, until


@pytest.mark.parametrize(
    ("choice", "value", "count"),
    [
        ("the last …", "3", 3),
        ("the beginning", "", 500),
        ("now", "", 0),
        ("an offset …", f"{9:016}", 499),
        ("a time …", "2020-01-01T00:00", 500),
        ("a time …", "2099-01-01T00:00", 0),
    ],
)
def test_where_reading_begins(console: Console, choice: str, value: str, count: int) -> None:
    """And the first of the messages is then in sight. What is wrong is refused in the server's words."""
    path = make_stream(console.server, [{"n": number} for number in range(500)])
    page = console.open_stream(path)
    expect(console.row('{"n": 499}')).to_be_visible()
    page.get_by_label("Start at").select_option(label="the last …")
    page.locator("[name=start-value]").fill("many")
    page.get_by_role("button", name="Read", exact=True).click()
    expect(page.get_by_role("alert").first).to_contain_text("a valid integer")
    page.get_by_label("Start at").select_option(label=choice)
    if value:
        page.locator("[name=start-value]").fill(value)
    page.get_by_role("button", name="Read", exact=True).click()
    expect(page.locator("#counted")).to_contain_text(re.compile(rf"^{count} messages shown"))
    if choice == "the beginning":
        expect(console.row('{"n": 0}')).to_be_in_viewport()
    expect(page.locator("#state")).to_contain_text("live")
    append(console.server, path, "after")
    expect(page.locator("#counted")).to_contain_text(re.compile(rf"^{count + 1} messages? shown"))


def test_older_messages_come_where_the_reader_scrolls_up(console: Console) -> None:
    """A page of them at a time; what is in sight stays there, and a filter means them too."""
    path = make_stream(console.server, [{"n": number} for number in range(2500)])
    page = console.open_stream(path)
    expect(page.locator("#counted")).to_contain_text("1,000 messages shown")
    older = page.get_by_role("button", name="Show older")
    older.click()
    expect(page.locator("#counted")).to_contain_text("2,000 messages shown")
    expect(console.row('{"n": 2499}')).to_be_in_viewport()
    page.get_by_role("listbox").evaluate("list => (list.scrollTop = 0)")
    expect(page.locator("#counted")).to_contain_text("2,500 messages shown")
    expect(console.row('{"n": 500}')).to_be_in_viewport()
    expect(older).to_have_count(0)
    page.get_by_role("listbox").evaluate("list => (list.scrollTop = 0)")
    expect(console.rows.first).to_contain_text("0" * 16)
    expect(console.rows.first).to_contain_text('{"n": 0}')
    append(console.server, path, {"n": 2500})
    console.search("$.n=3")
    expect(page.locator("#counted")).to_contain_text("1 of 2,501 messages shown")
    expect(console.rows).to_contain_text(['{"n": 3}'])


def test_older_messages_of_another_stream_with_the_name_are_not_shown(console: Console) -> None:
    """The page begins again. Of a closed stream it waits for nothing that would report the deletion."""
    path = make_stream(console.server, [{"n": number} for number in range(2500)], Stream_Closed="true")
    page = console.open_stream(path)
    expect(page.locator("#counted")).to_contain_text("1,000 messages shown")
    send(console.server, "DELETE", path)
    make_stream(console.server, [{"new": number} for number in range(2500)], name=path.split("/")[-1])
    page.get_by_role("button", name="Show older").click()
    expect(page.get_by_text("The stream was created again")).to_be_visible()
    expect(page.locator("#counted")).to_contain_text("2,500 messages shown")
    expect(console.row('{"n": ')).to_have_count(0)


def test_the_link_to_a_message_of_a_long_stream_shows_that_message(console: Console) -> None:
    path = make_stream(console.server, [{"n": number} for number in range(500)])
    page = console.open_stream(path)
    expect(page.locator("#counted")).to_contain_text("500 messages shown")
    page.get_by_role("listbox").focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("j")
    page.get_by_role("button", name="Copy the offset").click()
    expect(page.get_by_text("copied")).to_be_visible()
    assert page.url.endswith(f"at={page.evaluate('navigator.clipboard.readText()')}")
    page.get_by_role("button", name="Copy a link").click()
    expect(page.get_by_text("copied")).to_have_count(2)
    link = page.evaluate("navigator.clipboard.readText()")
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator("#counted")).to_contain_text("497 messages shown")
    expect(page.locator(".row.selected")).to_contain_text('{"n": 3}')
    expect(page.locator(".row.selected")).to_be_in_viewport()
    expect(page.get_by_role("region", name="Message")).to_contain_text("n: 3")


def test_another_address_in_the_same_tab_is_followed(console: Console) -> None:
    """The browser loads nothing anew where only the part behind "#" is another one."""
    path = make_stream(console.server, [{"n": number} for number in range(10)])
    page = console.open_stream(path, at=f"{9 * 3:016}")
    expect(page.locator(".row.selected")).to_contain_text('{"n": 3}')
    console.open_stream(path, at=f"{9 * 7:016}")
    expect(page.locator(".row.selected")).to_contain_text('{"n": 7}')
    expect(page.locator("#counted")).to_contain_text("3 messages shown")
    console.open("#/streams?prefix=nobody-has-this")
    expect(page.get_by_text("No stream has a name that begins like this.")).to_be_visible()
    page.get_by_role("link", name="Streams", exact=True).click()
    expect(page.locator("#search")).to_have_value("")
    expect(page.locator("tbody a").first).to_be_visible()


def test_nothing_is_written_into_an_address_that_the_reader_has_just_gone_to(console: Console) -> None:
    """What was selected until then is known a moment later, and the new address is not this page's yet."""
    path = make_stream(console.server, [{"n": number} for number in range(10)])
    page = console.open_stream(path, at=f"{9 * 3:016}")
    expect(page.locator(".row.selected")).to_contain_text('{"n": 3}')
    page.evaluate(
        """async at => {
          const { linkTo, parseAddress, replaceQuery } = await import("/v1/console/links.js")
          location.hash = linkTo(parseAddress(location.hash).query.get("path"), { at })
          replaceQuery({ at: "0".repeat(16) })
        }""",
        f"{9 * 7:016}",
    )
    expect(page.locator(".row.selected")).to_contain_text('{"n": 7}')


def test_an_address_with_a_wrong_offset_is_refused_in_the_servers_words(console: Console) -> None:
    page = console.open_stream(make_stream(console.server, [11, 22]), at=f"{1:016}")
    expect(page.get_by_role("alert").first).to_have_text(re.compile(f"^Offset {1:016} is not"))


def test_an_offset_that_is_gone_leads_behind_the_snapshot(console: Console) -> None:
    bucket = f"bucket-{uuid.uuid4().hex[:8]}"
    send(console.server, "PUT", f"/{bucket}")
    send(console.server, "PUT", f"/{bucket}/run", b"[1,2,3]", Content_Type="application/json")
    send(console.server, "PUT", f"/{bucket}/run/snapshot/{4:016}", b"{}", Content_Type="application/json")
    page = console.open_stream(f"/{bucket}/run", at=f"{0:016}")
    expect(page.get_by_text("is no longer kept: the snapshot holds it")).to_be_visible()
    expect(console.rows).to_have_count(1)
    expect(page.locator("#facts")).to_contain_text(f"snapshot at {4:016}")


def test_a_reader_that_was_cut_off_does_not_go_on_in_another_stream_of_the_name(console: Console) -> None:
    path = make_stream(console.server, ["old 1", "old 2"])
    page = console.open_stream(path)
    expect(console.row("old 2")).to_be_visible()
    expect(page.locator("#state")).to_contain_text("live")
    page.evaluate(
        """() => {
          const { fetch } = window
          window.fetch = async (url, init) => {
            const answer = await fetch(url, init)
            if (window.goOn || !url.pathname.startsWith("/v1/stream/")) return answer
            await new Promise((goOn) => Object.assign(window, { goOn }))
            const cut = new ReadableStream({ start: (body) => body.error(new TypeError("cut")) })
            return new Response(cut, answer)
          }
        }"""
    )
    append(console.server, path, "x" * 40_000)  # It fits no frame of the socket, and so is read.
    until(page, lambda: page.evaluate("Boolean(window.goOn)"))
    send(console.server, "DELETE", path)
    make_stream(console.server, [f"new {number}" for number in range(4)], name=path.rpartition("/")[2])
    page.evaluate("goOn()")
    expect(page.get_by_text("was created again")).to_be_visible()
    expect(console.rows).to_contain_text([f"new {number}" for number in range(4)])


def test_the_page_says_what_is_held_of_another_start_once_the_server_has_answered(console: Console) -> None:
    """Until then it does not say that appends are shown: "now" is when the server answers."""
    path = make_stream(console.server, [1, 2, 3])
    page = console.open_stream(path)
    expect(page.locator("#state")).to_contain_text("live")
    expect(page.locator("#counted")).to_contain_text("3 messages shown")
    held: list[Route] = []
    page.route("**?offset=now*", lambda route: held.append(route))  # noqa: PLW0108 - a built-in method is refused
    keep_what_is_said(page)
    page.get_by_label("Start at").select_option(label="now")
    page.get_by_role("button", name="Read", exact=True).click()
    expect(page.locator("#counted")).to_have_text("0 messages shown")
    expect(page.locator("#state")).to_contain_text("connecting")
    assert set(page.evaluate("said")) == {"0 messages shown"}
    append(console.server, path, "before the answer")
    until(page, lambda: held)
    held[0].continue_()
    expect(page.locator("#counted")).to_have_text("0 messages shown; new ones appear here")
    append(console.server, path, "after")
    expect(console.rows).to_have_count(1)
    expect(console.row("after")).to_be_visible()


def keep_what_is_said(page: Page) -> None:
    """Each text of the counter from here on, in the page's own `said`."""
    page.evaluate("""() => {
      const counted = document.querySelector("#counted")
      window.said = []
      new MutationObserver(() => said.push(counted.textContent))
        .observe(counted, { subtree: true, childList: true, characterData: true })
    }""")


def test_another_token_reads_the_stream_of_an_address_anew(console: Console) -> None:
    """Each message is there once."""
    path = make_stream(console.server, [{"n": number} for number in range(10)])
    page = console.open_stream(path, at=f"{9 * 3:016}")
    expect(page.locator("#counted")).to_contain_text("7 messages shown")
    page.get_by_role("button", name="Token").click()
    page.get_by_label("Bearer token").fill("another")
    reads: list[str] = []
    page.on("response", lambda response: reads.append(response.url) if f"{path}?" in response.url else None)
    page.get_by_role("button", name="Use this token").click()
    expect(page.get_by_label("Bearer token")).to_have_value("")
    page.keyboard.press("Escape")
    until(page, lambda: reads)
    append(console.server, path, {"n": 10})
    expect(console.row('{"n": 10}')).to_be_visible()
    expect(page.locator("#counted")).to_contain_text("8 messages shown")

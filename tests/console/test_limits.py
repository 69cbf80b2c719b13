"""The console with narrow tokens, hostile content, long streams, and a server that goes away."""

import json
import re
import uuid
from collections.abc import Iterator
from typing import Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.authorization.tokens import SECRET, token
from tests.conformance.servers import Server, running, tidemark_server
from tests.console.conftest import Console, append, make_stream, send, until

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\"'</style>"
MESSAGES = 100_000


# --- tokens -------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["asgi", "lambda"])
def closed_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    private = {"AUTH_SECRET": SECRET, "ALLOW_ANONYMOUS": "", "PUBLIC_READ_BUCKETS": "pubs"}
    with running(tidemark_server(request.param, tmp_path_factory.mktemp("closed"), **private)) as made:
        yield made


def test_a_narrow_token(closed_server: Server, browser: Browser) -> None:
    """It is kept for the tab alone, its rights are shown, and what it may not do names the missing scope."""
    group = uuid.uuid4().hex[:8]
    admin = {"Authorization": f"Bearer {token('manage:v1 write:v1')}"}
    for name in ("mine/run", "other"):
        path = f"/v1/stream/{group}/{name}"
        send(closed_server, "PUT", path, b"[1]", Content_Type="application/json", **admin)
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{closed_server.base_url}/v1/console#/streams")
    expect(page.get_by_text("This server asks for a token.")).to_be_visible()
    expect(page.locator("main")).not_to_contain_text("lacks")
    page.goto(f"{closed_server.base_url}/v1/console#/")
    expect(page.locator("main")).to_have_text("Overview")
    expect(page.locator(".notice, .error, .hint")).to_have_count(1)
    page.goto(f"{closed_server.base_url}/v1/console#/streams")
    page.get_by_role("button", name="Paste one").click()
    dialog = page.get_by_role("dialog")
    dialog.locator("textarea").fill("nonsense")
    dialog.get_by_role("button", name="Use this token").click()
    expect(dialog.get_by_role("alert")).to_contain_text("oken")
    dialog.locator("textarea").fill(f"Bearer {token(f'read:v1/{group}/mine/* write:agents')}")
    dialog.get_by_role("button", name="Use this token").click()
    expect(dialog.get_by_text(f"read:v1/{group}/mine/*")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("alert")).to_contain_text("the token lacks read:v1")
    page.locator("#search").fill(f"{group}/mine/")
    expect(page.get_by_role("link", name=f"{group}/mine/run")).to_be_visible()
    expect(page.get_by_role("checkbox")).to_have_count(0)
    page.get_by_role("link", name=f"{group}/mine/run").click()
    expect(page.locator("#state")).to_contain_text("live")
    page.get_by_text("More", exact=True).click()
    close = page.get_by_role("button", name="Close")
    expect(close).to_be_disabled()
    expect(close).to_contain_text(f"needs write:v1/{group}/mine/run")
    expect(page.get_by_role("button", name="Delete")).to_contain_text(f"needs manage:v1/{group}/mine/run")
    stored = page.evaluate("[JSON.stringify(localStorage), document.cookie, JSON.stringify(sessionStorage)]")
    assert "eyJ" not in "".join(stored), "every page of this origin could read it"
    page.reload()
    expect(page.get_by_role("button", name="Token ✓")).to_be_visible()
    page.get_by_role("button", name="Requests").click()
    page.locator(".call").first.click()
    assert "eyJ" not in page.content(), "the inspector shows no token"
    other = context.new_page()
    other.goto(f"{closed_server.base_url}/v1/console")
    expect(other.get_by_text("This server asks for a token.")).to_be_visible()
    context.close()


#: Of each type of which a browser makes a page, one whose script asks for `/ran`.
SCRIPT = 'fetch("/ran")'
XHTML = f'<html xmlns="http://www.w3.org/1999/xhtml"><body><script>{SCRIPT}</script></body></html>'
PAGES = {
    "text/html": f"<script>{SCRIPT}</script>",
    **dict.fromkeys(("application/xhtml+xml", "text/xml", "application/xml", "application/rdf+xml"), XHTML),
    "image/svg+xml": f'<svg xmlns="http://www.w3.org/2000/svg"><script>{SCRIPT}</script></svg>',
    "multipart/x-mixed-replace; boundary=b": "--b\r\nContent-Type: text/html\r\n\r\n"
    f"<script>{SCRIPT}</script>\r\n--b--",
}


def test_a_page_of_data_runs_no_script_and_has_no_console(closed_server: Server, browser: Browser) -> None:
    """It would be of the console's origin. Without the headers of its answer the script runs."""
    admin = {"Authorization": f"Bearer {token('read:* write:* manage:*')}"}
    send(closed_server, "PUT", "/pubs", b"", **admin)
    context = browser.new_context()
    page, ran = context.new_page(), list[str]()
    context.on("request", lambda asked: ran.append(asked.url) if asked.url.endswith("/ran") else None)
    console = page.goto(f"{closed_server.base_url}/v1/console")
    assert console is not None
    assert console.headers["cross-origin-opener-policy"] == "same-origin"
    for kind, body in PAGES.items():
        name = f"/pubs/{uuid.uuid4().hex[:12]}"
        send(closed_server, "PUT", name, body.encode(), Content_Type=kind, **admin)
        page.evaluate("url => { location.href = url }", f"{closed_server.base_url}{name}")
        page.wait_for_timeout(1000)
        assert ran == [], kind
        if page.url.endswith(name):
            page.go_back()

    def without_headers(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(status=answer.status, body=answer.body(), content_type="text/html")

    send(closed_server, "PUT", "/pubs/bare", PAGES["text/html"].encode(), Content_Type="text/html", **admin)
    context.route("**/pubs/bare", without_headers)
    page.goto(f"{closed_server.base_url}/pubs/bare")
    until(page, lambda: ran)
    context.close()


def test_a_snapshot_is_shown_as_text(console: Console) -> None:
    bucket = f"/b{uuid.uuid4().hex[:8]}"
    send(console.server, "PUT", bucket)
    send(console.server, "PUT", f"{bucket}/s", b"text", Content_Type="text/plain")
    send(console.server, "PUT", f"{bucket}/s/snapshot/{4:016}", HOSTILE.encode(), Content_Type="text/html")
    page = console.open_stream(f"{bucket}/s")
    page.get_by_role("button", name="snapshot").click()
    expect(page.get_by_role("dialog").locator("pre")).to_have_text(HOSTILE)
    assert page.evaluate("window.hacked") is None


# --- content ------------------------------------------------------------------------


def test_hostile_content_stays_text(console: Console) -> None:
    """In a message, in a name, in a producer's id, in JSON's names. Nothing of it runs."""
    name = f"{uuid.uuid4().hex[:8]} {HOSTILE.replace('/', '')}"
    path = "/v1/stream/" + "".join(f"%{byte:02X}" for byte in name.encode())
    send(console.server, "PUT", path, Content_Type="application/json")
    claim = {"Producer_Id": HOSTILE.replace(",", ""), "Producer_Epoch": "0", "Producer_Seq": "0"}
    message = {HOSTILE: [HOSTILE], "__proto__": {"polluted": 1}, "link": "javascript:alert(1)"}
    send(
        console.server, "POST", path, json.dumps([message]).encode(), Content_Type="application/json", **claim
    )
    page = console.open(f"#/streams?prefix={name[:8]}")
    page.get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    console.rows.first.click()
    expect(page.locator(".json-string").first).to_contain_text("window.hacked")
    page.get_by_text("Details", exact=True).click()
    expect(page.locator("#producers")).to_contain_text("<script>")
    page.get_by_text("More", exact=True).click()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).to_contain_text("<script>")
    assert page.evaluate("[window.hacked, ({}).polluted]") == [None, None]
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0


def test_what_turns_text_is_shown_by_its_code_and_an_escape_as_its_character(console: Console) -> None:
    """A name is of a bucket, or of an earlier release. What is shown as it was sent is the raw view."""
    bucket = f"turned-{uuid.uuid4().hex[:8]}"
    send(console.server, "PUT", f"/{bucket}")
    path = f"/{bucket}/" + quote("gnp.\u202eexe")
    stored = rb'["\u65e5 \u202e \ud83d \ud83c\udf0a \" \\u65e5","of \u001b",{"a\u2066":1,"b":"\u65e5"}]'
    send(console.server, "PUT", path, stored, Content_Type="application/json")
    page = console.open(f"#/streams?bucket={bucket}")
    page.get_by_role("link", name="gnp.⟨U+202E⟩exe").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("gnp.⟨U+202E⟩exe")
    expect(page).to_have_title("gnp.⟨U+202E⟩exe – Tidemark")
    expect(console.rows.nth(0)).to_contain_text('"日 ⟨U+202E⟩ ⟨U+D83D⟩ 🌊 \\" \\\\u65e5"')
    expect(console.rows.nth(1)).to_contain_text(r'"of \u001b"')
    expect(console.rows.nth(2)).to_contain_text('{"a⟨U+2066⟩":1,"b":"日"}')
    console.rows.nth(2).click()
    expect(page.locator(".json-members")).to_contain_text('a⟨U+2066⟩: 1b: "日"')
    page.get_by_role("button", name="Raw").click()
    expect(console.rows.nth(2)).to_contain_text(r'"b":"\u65e5"')


def test_a_hostile_address_leads_nowhere_else(console: Console) -> None:
    for path in ("javascript:alert(1)", "//elsewhere.example/x", "https://elsewhere.example/"):
        page = console.open("")
        page.goto(f"{console.server.base_url}/v1/console#/stream?path={path}")
        page.reload()
        expect(page.get_by_role("banner")).to_be_visible()
        page.wait_for_timeout(500)
    assert console.faults == []


# --- long streams -------------------------------------------------------------------


def test_a_hundred_thousand_messages(console: Console) -> None:
    """Only rows in sight exist, memory stays near the bytes, and beyond the limit the oldest are dropped."""
    path = make_stream(console.server, [])
    for start in range(0, MESSAGES, 20_000):
        append(console.server, path, [{"n": n, "fill": "x" * 60} for n in range(start, start + 20_000)])
    page = console.open_stream(path, at=f"{0:016}", view="raw")
    expect(console.rows.first).to_be_visible()
    expect(page.locator("#counted")).to_contain_text("100,000 messages shown")
    assert console.rows.count() < 100
    page.keyboard.press("g")
    expect(console.row('{"n": 99999,')).to_be_visible()
    page.locator(".list").evaluate("box => { box.scrollTop = box.scrollHeight / 2 }")
    expect(console.row('{"n": 50000,')).to_be_attached()
    page.locator("#search").fill('"n": 7777')
    expect(page.locator("#counted")).to_contain_text("11 of 100,000 messages shown")
    session = console.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    heap = session.send("Runtime.getHeapUsage")
    assert heap["usedSize"] + heap.get("backingStorageSize", 0) < 150e6
    page.locator("#search").fill("")
    append(console.server, path, [{"n": n} for n in range(MESSAGES, MESSAGES + 20_000)])
    expect(console.row(f'{{"n": {MESSAGES + 19_999}')).to_be_visible()
    expect(page.locator("#counted")).to_contain_text("were dropped")
    held = re.match(r"([\d,]+) messages shown", page.locator("#counted").inner_text())
    assert held
    assert int(held[1].replace(",", "")) <= MESSAGES


# --- a server that goes away --------------------------------------------------------


def test_a_tail_outlives_a_killed_server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    with running(tidemark_server("asgi", tmp_path_factory.mktemp("killed"))) as server:
        path = make_stream(server, [{"n": 0}])
        context = browser.new_context()
        made = Console(server, context, context.new_page())
        page = made.open_stream(path)
        expect(made.row('{"n": 0}')).to_be_visible()
        server.kill_group()
        expect(page.locator("#state")).to_contain_text("connection lost", timeout=120_000)
        server.start()
        append(server, path, {"n": 1})
        expect(made.row('{"n": 1}')).to_be_visible(timeout=120_000)
        expect(made.rows).to_have_count(2)
        context.set_offline(True)
        append(server, path, {"n": 2})
        context.set_offline(False)
        expect(made.row('{"n": 2}')).to_be_visible(timeout=120_000)
        expect(made.rows).to_have_count(3)
        context.close()


def test_a_server_that_does_not_answer_is_seen_on_every_page(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With the time since. Ages go on meanwhile, and once it answers again the page shows what is new."""
    with running(tidemark_server("asgi", tmp_path_factory.mktemp("silent"))) as server:
        make_stream(server, [1], name="before")
        context = browser.new_context()
        made = Console(server, context, context.new_page())
        page = made.open("#/streams")
        expect(page.get_by_role("link", name="before")).to_be_visible()
        server.kill_group()
        banner = page.get_by_text("No answer since")
        expect(banner).to_be_visible()
        age = page.locator("tbody time").inner_text()
        expect(page.locator("tbody time")).not_to_have_text(age)
        for place in ("Subscriptions", "Overview"):
            page.get_by_role("link", name=place).click()
            expect(page.get_by_role("heading", level=1)).to_have_text(place)
            expect(banner).to_be_visible()
        made.check_accessible()
        page.get_by_role("link", name="Streams").click()
        server.start()
        make_stream(server, [1], name="after")
        expect(page.get_by_role("link", name="after")).to_be_visible()
        expect(banner).to_have_count(0)
        context.close()


def test_a_long_stream_is_not_read_from_its_beginning_because_the_server_was_busy(console: Console) -> None:
    """The page asks for the last messages again once storage answers, and then shows them."""
    path = make_stream(console.server, list(range(1500)))
    refused: list[str] = []

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        words = "Storage does not answer; try again in 1 s"
        route.fulfill(status=503, headers={"Retry-After": "1"}, json={"error": words})

    for pattern in ("**/v1/stats?*", "**/v1/start?*"):
        console.page.route(pattern, refuse)
    page = console.open_stream(path)
    expect(page.get_by_role("alert")).to_have_text("Storage does not answer; try again in 1 s")
    expect(page.get_by_text("This page looks again every 5 s.")).to_be_visible()
    until(page, lambda: any("/v1/start?" in url for url in refused))
    page.unroute_all()
    expect(page.locator("#counted")).to_contain_text("1,000 messages shown")
    expect(console.row("1499")).to_be_visible()


# --- how it looks -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "width", "height"),
    [("light", 360, 740), ("dark", 1280, 800), ("light", 1920, 1080), ("dark", 2560, 1440)],
)
def test_every_page_fits_in_both_themes(
    server: Server, browser: Browser, scheme: Literal["light", "dark"], width: int, height: int
) -> None:
    """Messages are on the first screen, nothing scrolls sideways, no word is broken, and a long name is cut
    until somebody looks at it."""
    context = browser.new_context(
        color_scheme=scheme, reduced_motion="reduce", viewport={"width": width, "height": height}
    )
    made = Console(server, context, context.new_page())
    name = f"{uuid.uuid4().hex[:12]}{'-long' * 24}"
    path = make_stream(server, [{"n": n, "who": "a", "yes": True} for n in range(50)], name=name)
    shown = f"stream?path={quote(path, safe='')}"
    below = [f"/v1/console{each}" for each in ("", "#/subscriptions", "#/streams", f"#/{shown}")]
    for place in ("/", "/v1/docs", *below):
        made.page.goto(server.base_url + place)
        expect(made.page.get_by_role("heading", level=1)).to_be_visible()
        made.check_accessible()
        assert made.page.evaluate("document.documentElement.scrollWidth") <= width, place
    expect(made.rows.last).to_be_in_viewport()
    box = made.page.get_by_role("listbox").bounding_box()
    assert box is not None
    assert box["y"] + 200 < height
    heading = made.page.get_by_role("heading", level=1)
    is_cut = "heading => heading.scrollHeight > heading.clientHeight"
    assert heading.evaluate(is_cut) == (width == 360)
    heading.focus()
    assert not heading.evaluate(is_cut)
    made.rows.last.click()
    made.check_accessible()
    made.page.get_by_role("button", name="Requests").click()
    expect(made.page.get_by_role("heading", name="Requests")).to_be_in_viewport()
    made.open(f"#/streams?prefix={path.removeprefix('/v1/stream/')}")
    state = made.page.locator("tbody td:nth-child(2)").first
    expect(state).to_be_visible()
    assert state.evaluate("cell => cell.clientHeight < 60")
    context.close()

"""Each page of the console shows what is there."""

import json
import re
import urllib.error
import urllib.request
import uuid
from urllib.parse import unquote

import pytest
from playwright.sync_api import Route, expect

from tests.console.conftest import Console, append, make_stream, send, until


def test_the_overview_shows_what_the_server_did_before_the_page_was_opened(console: Console) -> None:
    """Health, the last hour, and the streams that are busiest, failing, or written last. A deployment does
    not know what its environments did, and the page says so."""
    path = make_stream(console.server, [{"n": 1}], name=f"!recent-{uuid.uuid4().hex[:6]}")
    name = path.removeprefix("/v1/stream/")
    for _ in range(100):
        append(console.server, path, {"n": 2})
    with pytest.raises(urllib.error.HTTPError, match="409"):
        send(console.server, "POST", path, b"text", Content_Type="text/plain")
    page = console.page
    wakes = {'_bucket{le="0.005"}': 9, '_bucket{le="+Inf"}': 10, "_count": 10}
    metrics = "\n".join(f"tidemark_wake_seconds{name} {count}" for name, count in wakes.items())
    page.route("**/v1/metrics", lambda route: route.fulfill(body=metrics))
    page.goto(console.server.base_url + "/")
    page.get_by_role("link", name="Console").click()
    expect(page).to_have_title("Overview – Tidemark")
    expect(page.locator("#health")).to_contain_text("healthy")
    expect(page.locator(".panel", has_text="Written last").get_by_role("link", name=name)).to_be_visible()
    unknown = page.get_by_text("a deployment keeps them in CloudWatch")
    busiest = page.locator("#busiest")
    expect(busiest.or_(unknown)).to_be_visible()
    console.check_accessible()
    if busiest.is_visible():
        failing = page.locator(".panel", has_text="Failing")
        expect(failing.get_by_role("listitem").filter(has_text=name)).to_contain_text("1 request refused")
        chart = page.get_by_role("region", name="Bytes a second")
        expect(chart.locator(".line").first).to_be_attached()
        expect(chart).to_contain_text("appended")
        expect(page.locator("#health")).to_contain_text("append to reader: p50 ≤ 5 ms, p99 > 30 s")
        busiest.get_by_role("link", name=name).click()
        expect(page).to_have_url(re.compile("#/stream"))


def test_the_overview_of_an_empty_server_shows_how_to_begin(console: Console) -> None:
    console.page.route(
        "**/v1/streams?*", lambda route: route.fulfill(json={"streams": [], "has_more": False})
    )
    console.open()
    expect(console.page.get_by_label("The request as curl")).to_contain_text("curl -X PUT")
    expect(console.page.get_by_text("–", exact=True)).to_have_count(0)


def test_lists_of_some_streams_say_of_which(console: Console) -> None:
    numbers = dict.fromkeys(("tail_offset", "last_write_at_ms", "expires_at_ms"), 1)
    stream = {"stream_id": "a", "status": "Closed", **numbers}
    listed = {"streams": [stream], "has_more": True}
    console.page.route("**/v1/streams?*", lambda route: route.fulfill(json=listed))
    written = {"bucket_id": "agents", "stream_id": "z", "seconds_ago": 7}
    traffic = {"seconds": 1, "streams": [], "left_out": 0, "written": [written]}
    console.page.route("**/v1/traffic", lambda route: route.fulfill(json=traffic))
    console.open()
    latest = console.page.locator("#latest")
    expect(latest.or_(console.page.get_by_text("a deployment keeps them in CloudWatch"))).to_be_visible()
    if latest.is_visible():
        expect(latest.get_by_role("row")).to_have_count(2)
        expect(latest.get_by_role("link", name="agents/z")).to_be_visible()
    for title in ("Expiring next", "Closed lately"):
        expect(console.page.get_by_role("heading", name=f"{title} of the first 100 by name")).to_be_visible()
    listed["next_cursor"] = "a"
    console.open("#/streams?order=written")
    expect(console.page.get_by_role("status")).to_contain_text(
        "20 streams of the first 20 by name, and no more"
    )


def test_the_chosen_colours_are_those_of_every_page(console: Console) -> None:
    """And may be chosen on each."""
    page, chosen = console.open(), ""
    console_page = "/v1/console"
    for place, colours in ((console_page, "dark"), ("/", "light"), ("/v1/docs", "dark"), (console_page, "")):
        page.goto(console.server.base_url + place)
        expect(page.locator("html")).to_have_attribute("data-colours", chosen)
        for _ in range(3):
            if page.locator("html").get_attribute("data-colours") != colours:
                page.get_by_label("Colours").click()
        expect(page.locator("html")).to_have_attribute("data-colours", colours)
        expect(page.get_by_label(f"Colours: {colours or 'those of the system'}")).to_be_visible()
        chosen = colours


def test_an_unknown_address_says_so(console: Console) -> None:
    page = console.open("#/bukcets")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such page")
    expect(page).to_have_title("No such page – Tidemark")
    console.check_accessible()


def test_streams_are_searched_by_prefix_and_paged(console: Console) -> None:
    """Each page is asked for once. It is there again after a stream was looked at, and for somebody else who
    opens its address, and can go to the first page."""
    group = uuid.uuid4().hex[:8]
    for number in range(103):
        make_stream(console.server, [], name=f"{group}/{number:03}")
    page = console.open("#/streams")
    expect(page.get_by_role("heading", name="Streams")).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/v1/streams?" in request.url else None)
    console.search(f"{group}/")
    first, older, newer = (
        page.get_by_role("button", name=f"{each} page") for each in ("First", "Previous", "Next")
    )
    for number, count in ((1, 50), (2, 50), (3, 3)):
        expect(page.get_by_text(f"{count} streams on page {number}")).to_be_visible()
        expect(page.locator("tbody a").first).to_have_text(f"{group}/{50 * (number - 1):03}")
        assert page.locator("tbody tr").count() == count
        if number < 3:
            newer.click()
    expect(newer).to_be_disabled()
    assert [url.rpartition("%2F")[2] for url in asked if f"after={group}" in url] == ["049", "099"]
    console.check_accessible()
    page.get_by_role("link", name=f"{group}/101").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{group}/101")
    page.go_back()
    expect(page.get_by_text("3 streams on page 3")).to_be_visible()
    older.click()
    expect(page.locator("tbody a").first).to_have_text(f"{group}/050")
    address = page.url.partition("/v1/console")[2]
    page.goto("about:blank")
    console.open(address)
    expect(page.get_by_text(f"50 streams after {group}/049")).to_be_visible()
    expect(older).to_be_disabled()
    first.click()
    expect(page.get_by_text("50 streams on page 1")).to_be_visible()


def test_the_next_page_is_asked_for_once_while_it_is_on_its_way(console: Console) -> None:
    group = uuid.uuid4().hex[:8]
    for number in range(51):
        make_stream(console.server, [], name=f"{group}/{number:03}")
    page = console.open(f"#/streams?prefix={group}")
    expect(page.get_by_text("50 streams on page 1")).to_be_visible()
    held: list[Route] = []
    page.route("**/v1/streams?*", lambda route: held.append(route))  # noqa: PLW0108 - a built-in method is refused
    page.get_by_role("button", name="Next page").click()
    expect(page.get_by_role("button", name="Next page")).to_be_disabled()
    expect(page.get_by_text("Loading…")).to_be_visible()
    until(page, lambda: held)
    held[0].continue_()
    expect(page.get_by_text("1 stream on page 2")).to_be_visible()
    assert len(held) == 1


def test_a_listed_stream_shows_that_it_is_closed_or_expires(console: Console) -> None:
    group = uuid.uuid4().hex[:8]
    closed = make_stream(console.server, [1], name=f"{group}/closed")
    send(console.server, "POST", closed, Stream_Closed="true")
    make_stream(console.server, [1], name=f"{group}/expiring", Stream_TTL="3600")
    page = console.open(f"#/streams?prefix={group}")
    expect(page.get_by_role("row", name=f"{group}/closed")).to_contain_text("closed")
    expect(page.get_by_role("row", name=f"{group}/expiring")).to_contain_text("open, expires in 1 h")


def test_the_streams_of_a_bucket(console: Console) -> None:
    bucket = f"bucket-{uuid.uuid4().hex[:8]}"
    send(console.server, "PUT", f"/{bucket}")
    send(console.server, "PUT", f"/{bucket}/a%20run", b"x", Content_Type="text/plain")
    page = console.open("#/streams")
    expect(page.locator(f"#buckets option[value={bucket}]")).to_have_count(1)
    page.get_by_label("Bucket").fill(bucket)
    page.get_by_label("Bucket").press("Enter")
    page.get_by_label("Bucket").blur()
    page.get_by_role("link", name="a run").click()
    expect(page.get_by_role("heading", name="a run")).to_be_visible()
    expect(page.get_by_text(f"bucket {bucket}")).to_be_visible()


def test_messages_arrive_while_they_are_watched(console: Console) -> None:
    """The page is told of them by its socket: no request waits for them."""
    asked: list[str] = []
    console.page.on("request", lambda request: asked.append(request.url))
    path = make_stream(console.server, [{"n": number} for number in range(30)])
    page = console.open_stream(path)
    expect(page.locator("#state")).to_contain_text("live")
    expect(page.locator("#counted")).to_contain_text("30 messages shown")
    page.route("**/v1/stats?*", lambda route: route.abort())
    for number in range(30, 40):
        append(console.server, path, {"n": number})
    expect(page.locator("#counted")).to_contain_text("40 messages shown")
    expect(console.row('{"n": 39}')).to_be_visible()
    expect(page.locator("#announcer")).to_contain_text("new messages")
    expect(page.locator("#facts")).to_contain_text(f"{10 * 9 + 30 * 10} bytes in 40 messages")
    reads = [each for each in asked if f"{path}?" in each]
    assert reads
    assert not [each for each in reads if "live=" in each]
    console.check_accessible()


def test_a_paused_tail_stands_still_and_counts_what_is_new(console: Console) -> None:
    path = make_stream(console.server, [{"n": 0}])
    page = console.open_stream(path)
    expect(console.row('{"n": 0}')).to_be_visible()
    page.keyboard.press("p")
    for number in range(1, 38):
        append(console.server, path, {"n": number})
    expect(page.get_by_role("button", name="Go on (37 new)")).to_be_visible()
    expect(console.rows).to_have_count(1)
    page.keyboard.press("p")
    expect(console.row('{"n": 37}')).to_be_visible()


def test_every_offset_is_where_its_message_begins(console: Console) -> None:
    """Of values with brackets, commas and quotes in them, as the server has them."""
    values = [1, "a,[b]", {"x": [1, {"y": "]}\\"}]}, None, "ü🌊", [], [[1], [2]]]
    path = make_stream(console.server, [])
    starts = []
    for value in values:
        starts.append(send(console.server, "HEAD", path)[1]["stream-next-offset"])
        append(console.server, path, [value])
    page = console.open_stream(path)
    expect(console.rows).to_have_count(len(values))
    assert page.locator(".row .offset").all_inner_texts() == starts
    for start, value in zip(starts, values, strict=True):
        with urllib.request.urlopen(f"{console.server.base_url}{path}?offset={start}") as answer:
            assert json.load(answer)[0] == value


def test_the_offsets_of_a_page_that_was_compacted_are_asked_for(console: Console) -> None:
    """The first two messages are taken out of the answer, as a compaction does: its length no longer says
    where the third one begins. Until the server has told it, a fork behind it is made where the page ends."""
    path = make_stream(console.server, [1, 22, 333], Stream_Compact="last-by-key")
    asked: list[Route] = []

    def tell(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"compacted_offset": f"{9:016}"})

    console.page.route(
        f"**{path}?offset={0:016}*", lambda route: route.fulfill(response=route.fetch(), body="[333]")
    )
    console.page.route("**/v1/stats?*", tell)
    console.page.route("**/v1/times?*", lambda route: asked.append(route))  # noqa: PLW0108 - as above
    with console.page.expect_request("**/v1/times?*"):
        page = console.open_stream(path)
    offset = console.row("333").locator(".offset")
    expect(offset).to_have_text(f"≥{0:016}")
    append(console.server, path, "four")
    expect(console.row("four").locator(".offset")).to_have_text(f"{9:016}")
    facts = page.locator("#facts")
    expect(facts).to_contain_text("were written, of which 2 messages are left")
    expect(facts).to_contain_text("keeps the last message of each key")
    expect(facts).to_contain_text(f"compacted up to {9:016}")
    expect(page.locator(".extent")).to_have_attribute("aria-label", re.compile(f"compacted up to {9:016}"))
    console.row("333").click()
    expect(page.get_by_role("heading", name="At or behind offset")).to_be_visible()
    page.get_by_text("More", exact=True).click()
    page.get_by_role("button", name="Fork").click()
    expect(page.get_by_label("At offset")).to_have_value(f"{9:016}")
    page.keyboard.press("Escape")
    until(page, lambda: asked)
    times = {"times_ms": [1_000, 2_000], "messages": [1, 1], "bytes": [4, 7]}
    asked[0].fulfill(json=times | {"end_offset": f"{16:016}", "message_ends": [f"{9:016}", f"{16:016}"]})
    expect(offset).to_have_text(f"{5:016}")
    expect(console.row("333").locator(".time")).to_contain_text(":01")
    expect(page.get_by_role("heading", name=f"Offset {5:016}", exact=True)).to_be_visible()


def test_a_message_is_shown_as_a_tree_as_text_and_as_bytes(console: Console) -> None:
    path = make_stream(
        console.server, [{"who": {"name": "Zoë"}, "list": [1, True, None]}, {"x": "x" * 300_000}]
    )
    page = console.open_stream(path)
    expect(page).to_have_title(f"{path.removeprefix('/v1/stream/')} – Tidemark")
    console.rows.first.click()
    detail = page.get_by_role("region", name="Message")
    expect(detail.locator(".json-string")).to_have_text('"Zoë"')
    detail.get_by_role("button", name="text").click()
    expect(detail.locator("pre")).to_have_text('{"who": {"name": "Zo\\u00eb"}, "list": [1, true, null]}')
    detail.get_by_role("button", name="hex").click()
    expect(detail.locator("pre")).to_contain_text("7b 22 77 68 6f")
    console.rows.nth(1).click()
    detail.get_by_role("button", name="text").click()
    expect(detail).to_contain_text("The first 256.0 KiB of it.")
    console.check_accessible()


def test_only_messages_with_a_text_are_shown(console: Console) -> None:
    path = make_stream(console.server, [{"n": number, "even": number % 2 == 0} for number in range(20)])
    page = console.open_stream(path, view="raw")
    expect(page.locator("#counted")).to_contain_text("20 messages shown")
    console.search('"EVEN": true')
    expect(page.locator("#counted")).to_contain_text("10 of 20 messages shown")
    append(console.server, path, {"n": 20, "even": True})
    expect(page.locator("#counted")).to_contain_text("11 of 21 messages shown")
    expect(console.rows.first).to_contain_text('{"n": 0')


def test_text_that_comes_word_by_word_is_one_line_as_it_is_when_read_again(console: Console) -> None:
    """Writers of text end anywhere, here in a character. A filter looks again at a line that has grown."""
    path = make_stream(console.server, [], "text/plain")
    page = console.open_stream(path, view="lines")
    expect(page.locator("#counted")).to_have_text("0 lines shown; new ones appear here")
    console.search("tides")
    for part in ("Why are there two ti", "des a day?\nThe M", "oon ü"):
        for piece in (part.encode()[:-1], part.encode()[-1:]):
            send(console.server, "POST", path, piece, Content_Type="text/plain")
            page.wait_for_timeout(200)  # Each is told alone, most of the time.
    expect(page.locator("#counted")).to_have_text("1 of 2 lines shown")
    page.locator("#search").fill("")
    expect(console.rows).to_have_count(2)
    for row in range(2):  # Its time is asked for later.
        expect(console.rows.nth(row)).to_contain_text(re.compile(r"\d\d:\d\d:\d\d"))
    shown = page.locator("[role=option]").all_inner_texts()
    assert [row.splitlines()[-1] for row in shown] == ["Why are there two tides a day?", "The Moon ü"]
    page.reload()
    expect(page.locator("[role=option]")).to_have_text(shown, use_inner_text=True)


def test_a_text_stream_is_shown_as_running_text_to_its_end(console: Console) -> None:
    path = make_stream(console.server, [b"".join(b"line %d\n" % n for n in range(500))], "text/plain")
    page = console.open_stream(path)
    expect(page.locator("#counted")).to_contain_text("500 lines shown")
    text = page.get_by_label("The text")
    for word in (b"A model ", b"writes ", b"word by word."):
        send(console.server, "POST", path, word, Content_Type="text/plain")
    expect(text).to_contain_text("line 499 A model writes word by word.")
    assert text.evaluate("box => box.scrollHeight - box.scrollTop - box.clientHeight") < 30
    console.check_accessible()


def test_a_paused_text_stands_still_in_the_middle_of_a_line(console: Console) -> None:
    path = make_stream(console.server, [b"one "], "text/plain")
    page = console.open_stream(path, view="lines")
    expect(console.rows).to_have_count(1)
    page.keyboard.press("p")
    send(console.server, "POST", path, b"two", Content_Type="text/plain")
    expect(page.get_by_role("button", name="Go on (1 new)")).to_be_visible()
    expect(console.rows.first).not_to_contain_text("two")
    page.keyboard.press("p")
    expect(console.row("two")).to_be_visible()


def test_what_was_there_before_is_not_told_as_coming_now(console: Console) -> None:
    """The rate is that of appends, not that of the page which reads what is old."""
    path = make_stream(console.server, [{"n": number} for number in range(700)])
    page = console.open_stream(path)
    expect(page.locator("#counted")).to_contain_text("700 messages shown")
    pace = page.locator("#pace")
    for _ in range(30):
        assert pace.count() == 0
        page.wait_for_timeout(100)
    while not pace.count():  # A page that has little processor may not tell each second.
        append(console.server, path, {"n": 1})
        page.wait_for_timeout(100)


def test_text_is_shown_by_lines_and_bytes_by_rows(console: Console) -> None:
    text = make_stream(console.server, [b"one\ntwo \xc3\xbc <b>\xff\x00\nthree"], "text/plain")
    console.open_stream(text, view="lines")
    expect(console.rows).to_have_count(3)
    expect(console.rows.nth(1)).to_contain_text("two ü <b>")
    data = make_stream(console.server, [bytes(range(70))], "application/octet-stream")
    console.open_stream(data)
    expect(console.rows).to_have_count(5)
    expect(console.rows.nth(3)).to_contain_text(f"{48:016}")
    expect(console.rows.nth(3)).to_contain_text("30 31 32 33")
    expect(console.rows.nth(3)).to_contain_text("0123456789:;<=>?")


def test_bytes_are_told_by_how_they_begin_and_downloaded_as_they_are(console: Console) -> None:
    data = bytes.fromhex("89504e470d0a1a0a") + bytes(range(256))
    page = console.open_stream(make_stream(console.server, [data], "application/octet-stream"))
    expect(page.locator("#content-type")).to_contain_text("looks like PNG image")
    page.get_by_text("More", exact=True).click()
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download what is shown").click()
    assert downloading.value.suggested_filename.endswith(".png")
    assert downloading.value.path().read_bytes() == data


def test_json_is_a_log_with_the_columns_that_its_messages_have(console: Console) -> None:
    """And with the time of each message. A link opens the same view."""
    orders = [{"id": 1, "state": "paid", "lines": [1]}, {"id": 2, "state": "open", "note": "late"}]
    path = make_stream(console.server, orders * 3)
    page = console.open_stream(path)
    cells = console.rows.first.locator(".cell")
    expect(cells).to_have_text(["1", "paid", '{"lines":[1]}'])
    expect(page.locator(".log-head .cell")).to_have_text(["id", "state", "more"])
    expect(console.rows.first.locator("time")).to_have_attribute("title", re.compile(r"^20\d\d-"))
    console.check_accessible()
    page.get_by_role("button", name="Raw").click()
    page.locator("#search").fill("late")
    expect(console.rows).to_have_count(3)
    expect(console.rows.first.locator(".preview")).to_have_text('{"id": 2, "state": "open", "note": "late"}')
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator("#search")).to_have_value("late")
    expect(console.rows.first.locator(".preview")).to_contain_text("late")


def test_a_line_says_what_is_known_of_a_stream(console: Console) -> None:
    source = make_stream(console.server, [1, 2, 3])
    path = f"{source}-fork"
    send(console.server, "PUT", path, Stream_Forked_From=source, Stream_TTL="3600")
    claim = {"Producer_Id": "writer-7", "Producer_Epoch": "2", "Producer_Seq": "0"}
    send(console.server, "POST", path, b"[4]", Content_Type="application/json", **claim, Stream_Closed="true")
    page = console.open_stream(path)
    facts = page.locator("#facts")
    for told in ("closed by writer-7", "in 4 messages", "after 3600 s without use", f"at {3 * 2:016}"):
        expect(facts).to_contain_text(told)
    page.get_by_text("Details", exact=True).click()
    expect(page.get_by_role("row", name="writer-7")).to_be_visible()
    expect(page.get_by_role("img")).to_have_attribute("aria-label", re.compile("fork at .*, closed$"))
    facts.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(source.removeprefix("/v1/stream/"))
    expect(page.locator("#facts")).to_contain_text("1 fork")


def test_a_stream_that_does_not_exist_can_be_created_and_is_then_shown(console: Console) -> None:
    name = uuid.uuid4().hex[:8]
    page = console.open_stream(f"/v1/stream/{name}")
    expect(page.get_by_role("alert")).to_contain_text("Stream does not exist")
    page.get_by_role("button", name="Create it").click()
    page.get_by_role("dialog").get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.locator("#state")).to_contain_text("live")


def test_the_inspector_shows_each_request_with_its_headers(console: Console) -> None:
    path = make_stream(console.server, [1], name=f"{uuid.uuid4().hex[:8]}%20%C3%A9/a")
    page = console.open_stream(path)
    page.get_by_role("button", name="Requests").click()
    inspector = page.get_by_role("complementary", name="Request inspector")
    inspector.locator(".call").filter(has_text=f"{unquote(path)}?offset=").last.click()
    expect(inspector).to_contain_text("Server-Timing: storage;dur=")
    name = page.get_by_role("rowheader", name="stream-next-offset", exact=True)
    expect(inspector.locator("tr", has=name)).to_contain_text(f"{2:016}")
    console.check_accessible()


def test_the_api_is_a_page(console: Console) -> None:
    page = console.page
    page.goto(f"{console.server.base_url}/v1/docs")
    page.get_by_text("Append to a stream, close it, or both").first.click()
    operation = page.locator("#appendToStream")
    expect(operation).to_contain_text("Producer-Seq")
    path = make_stream(console.server, [1])
    operation.get_by_label("path", exact=True).fill(path.removeprefix("/v1/stream/"))
    operation.get_by_label("Body").fill("[2]")
    expect(operation.locator("pre").first).to_contain_text(f"curl -X POST '{console.server.base_url}{path}'")
    operation.get_by_role("button", name="Send it to this server").click()
    expect(operation.get_by_label("The answer")).to_contain_text(f"stream-next-offset: {4:016}")
    page.get_by_text("Create a subscription").first.click()
    shown = page.locator("#createSubscription").get_by_label("The request as curl")
    expect(shown).to_contain_text('"pattern":"tasks/*","type":"pull-wake"')
    with urllib.request.urlopen(f"{console.server.base_url}/v1/openapi.json") as answer:
        paths = json.load(answer)["paths"]
    operations = [
        each["operationId"] for path in paths.values() for name, each in path.items() if name != "parameters"
    ]
    others = re.compile("(ByAlias|InBucket|(?<!stream)Metadata)$")
    expect(page.locator(".operation")).to_have_count(
        len([each for each in operations if not others.search(each)])
    )
    expect(operation).to_contain_text("Also POST /v1/streams/{path}, POST /{bucket}/{stream}")
    console.check_accessible()
    page.get_by_label("Search operations").fill("bulk")
    expect(page.locator(".operation")).to_have_count(0)
    page.get_by_label("Search operations").fill("many streams")
    expect(page.locator(".operation")).to_have_count(1)
    page.get_by_text("Read a page of each").click()
    expect(page.locator("#readMany").get_by_label("The request as curl")).to_contain_text(
        '"stream":"/v1/stream/chat/42"'
    )

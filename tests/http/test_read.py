"""Catch-up reads (§5.6), `offset=now` (§8), and what a cache may keep of them (§10)."""

import pytest

from tests.answers import Answer
from tests.http.asgi import CLOSE, JSON, Door, Make

pytestmark = pytest.mark.each_way

SHARED = "public, max-age=60, stale-while-revalidate=300"
REVALIDATED = "public, no-cache"


def state(answer: Answer) -> tuple[str | None, str | None]:
    return answer["stream-up-to-date"], answer["stream-closed"]


def check_absent(answer: Answer, *names: str) -> None:
    assert {name: answer[name] for name in names} == dict.fromkeys(names)


def test_a_stream_is_read_backwards_a_page_at_a_time(door: Door, make_stream: Make) -> None:
    path = make_stream("application/json", b"[1,22,333]")
    door.post(path, JSON, b"[4444,5]")
    pages, before = [], "now"
    while (page := door.get(f"{path}?offset={before}&last=2")).json:
        assert before in {"now", page.next_offset}
        pages.append((page.json, state(page)[0], page["cache-control"]))
        before = page["stream-start-offset"] or ""
    assert [page for page, *_ in pages] == [[4444, 5], [22, 333], [1]]
    assert [told for _, *told in pages] == [["true", "no-store"], *[[None, REVALIDATED]] * 2]
    assert (page.status, page.next_offset, page["stream-start-offset"]) == (200, before, before)
    door.post(path, {"Stream-Closed": "true"})
    ends = [door.get(f"{path}?offset={before}&last=2") for before in ("now", door.head(path).next_offset)]
    assert len({(page["etag"], page["stream-cursor"], page.body) for page in ends}) == 1, (
        "both name the stream"
    )
    middle = door.get(f"{path}?offset=0000000000000009&last=2")
    again = door.get(f"{path}?offset=0000000000000009&last=2", {"If-None-Match": middle["etag"] or ""})
    assert (again.status, again["stream-start-offset"]) == (304, middle["stream-start-offset"])
    check_absent(door.get(path), "stream-start-offset")
    assert "offset: now, or a Stream-Start-Offset" in door.get(f"{path}?last=2").json["error"]


@pytest.mark.parametrize(("content_type", "empty"), [("text/plain", b""), ("application/json", b"[]")])
def test_a_read_at_the_tail_is_empty_and_not_cached(
    door: Door, make_stream: Make, content_type: str, empty: bytes
) -> None:
    """It is up to date and returns the requested offset. No cache may keep it, because the next append makes
    it wrong."""
    path = make_stream(content_type)
    for _ in range(2):
        tail = door.head(path).next_offset
        answer = door.get(f"{path}?offset={tail}")
        assert (answer.status, answer.body, answer.next_offset) == (200, empty, tail)
        assert state(answer) == ("true", None)
        assert answer["cache-control"] == "no-store"
        assert answer["etag"]
        door.post(path, {"Content-Type": content_type}, b"1")


# --- closed streams -----------------------------------------------------------------


def test_a_reader_learns_of_the_close_with_the_final_data_or_after_it(door: Door, make_stream: Make) -> None:
    """The end is final, so a cache may keep the response."""
    path = make_stream(body=b"data", Stream_Closed="true")
    whole = door.get(path)
    behind = door.get(f"{path}?offset={whole.next_offset}")
    assert (whole.body, state(whole)) == (b"data", ("true", "true"))
    assert (behind.status, behind.body, state(behind)) == (200, b"", ("true", "true"))
    assert behind.next_offset == whole.next_offset
    assert whole["cache-control"] == behind["cache-control"] == REVALIDATED
    assert whole["stream-cursor"] == behind["stream-cursor"] == str(door.cursor_of(path))
    bound = door.get(f"{path}?offset={whole.next_offset}&cursor={door.cursor_of(path)}")
    assert bound["cache-control"] == SHARED


# --- caches -------------------------------------------------------------------------


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
def test_a_cache_may_keep_reads_with_the_streams_cursor(door: Door, make_stream: Make, live: str) -> None:
    path = make_stream(body=b"data")
    for cursor in (door.cursor_of(path), door.cursor_of(path, interval=7)):
        assert door.get(f"{path}?offset=-1&cursor={cursor}{live}")["cache-control"] == SHARED
        assert door.get(f"{path}?offset=-1&cursor={cursor + 1}{live}")["cache-control"] == REVALIDATED
    assert door.get(f"{path}?offset=-1{live}")["cache-control"] == REVALIDATED


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
def test_a_url_that_a_cache_may_answer_by_itself_belongs_to_one_incarnation(
    door: Door, make_stream: Make, live: str
) -> None:
    """A stream that is created again has the same offsets but other cursors; a cache that revalidates a page
    of the old stream gets the new one."""
    path = make_stream(body=b"old!")
    first = door.get(f"{path}?offset=-1{live}")
    kept = f"{path}?offset=-1&cursor={first['stream-cursor']}{live}"
    assert door.get(kept)["cache-control"] == SHARED
    door("DELETE", path)
    door.put(path, {"Content-Type": "text/plain"}, b"new!")
    assert str(door.cursor_of(path)) != first["stream-cursor"]
    again = door.get(kept, {"If-None-Match": first["etag"] or ""})
    assert (again.status, again.body, again["cache-control"]) == (200, b"new!", REVALIDATED)


@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
@pytest.mark.parametrize("again", [b"a longer one", b"new", b""])
def test_a_cursor_of_an_earlier_stream_of_this_name_is_410_with_the_way_on(
    door: Door, make_stream: Make, live: str, again: bytes
) -> None:
    """Its reader would read the end of this one behind the beginning of that one, wherever it ends."""
    path = make_stream(body=b"old!")
    caught_up = door.get(path)
    polled = door.get(f"{path}?offset=-1&live=long-poll")["stream-cursor"]
    door.delete(path)
    door.put(path, {"Content-Type": "text/plain"}, again)
    for cursor in (caught_up["stream-cursor"], polled):
        refused = door.get(f"{path}?offset={caught_up.next_offset}&cursor={cursor}{live}")
        assert (refused.status, refused["cache-control"]) == (410, "no-store")
        assert "offset -1 without the cursor" in refused.json["error"]
        for begin in ("-1", refused.next_offset):
            assert door.get(f"{path}?offset={begin}&cursor={cursor}{live}").status in {200, 204}
    other = f"{path}?offset={caught_up.next_offset}&cursor=7{live}"
    assert door.get(other).status == (200 if len(again) > 4 else 410), "no cursor of ours says nothing"


# --- pages --------------------------------------------------------------------------


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("closed", [False, True])
def test_pages_together_are_the_whole_stream(door: Door, make_stream: Make, closed: bool) -> None:
    """Only the last page says that it is up to date or the end."""
    path = make_stream("application/json")
    for n in range(6):
        door.post(path, JSON, f'[{n},"{n}{n}"]'.encode())
    if closed:
        door.post(path, CLOSE)
    pages = [door.get(path)]
    while state(pages[-1])[0] is None:
        last = pages[-1]
        pages.append(door.get(f"{path}?offset={last.next_offset}&cursor={last['stream-cursor']}"))
    assert len(pages) > 2
    assert [state(page) for page in pages[:-1]] == [(None, None)] * (len(pages) - 1)
    assert state(pages[-1]) == ("true", "true" if closed else None)
    read = [item for page in pages for item in page.json]
    assert read == [item for n in range(6) for item in (n, f"{n}{n}")]
    assert [page["cache-control"] for page in pages] == [REVALIDATED] + [SHARED] * (len(pages) - 1)
    assert pages[-1].next_offset == door.head(path).next_offset


# --- If-None-Match ------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "?offset=0000000000000005"])
def test_closing_a_stream_changes_its_entity_tag(door: Door, make_stream: Make, query: str) -> None:
    """§10.1: otherwise a 304 would hide the close from a client that has the data already. A 304 has the
    headers that a cache needs to go on using its copy."""
    path = make_stream(body=b"hello")
    before = door.get(path + query)
    assert (before.status, state(before)) == (200, ("true", None))
    door.post(path, CLOSE)
    after = door.get(path + query, {"If-None-Match": before["etag"] or ""})
    assert (after.status, after["stream-closed"]) == (200, "true")
    assert after["etag"] != before["etag"]
    again = door.get(path + query, {"If-None-Match": after["etag"] or ""})
    assert (again.status, again.body) == (304, b"")
    for name in ("etag", "cache-control", "stream-next-offset", "stream-up-to-date", "stream-closed"):
        assert again[name] == after[name], name


# --- HEAD ---------------------------------------------------------------------------


def test_head_returns_the_metadata_without_a_body(door: Door, make_stream: Make) -> None:
    expires = {"Stream_Expires_At": "2040-01-01T01:00:00.5+01:00"}
    path = make_stream("application/json; charset=utf-8", b"[1,2]", **expires)
    answer = door.head(path)
    assert answer.status == 200
    assert answer["content-type"] == "application/json"
    assert answer.next_offset == door.get(path).next_offset
    assert answer["cache-control"] == "no-store"
    assert answer["etag"], "the tail's, for If-Match"
    assert answer["stream-expires-at"] == expires["Stream_Expires_At"], "as it was given"
    check_absent(answer, "stream-closed", "stream-ttl", "stream-up-to-date", "location")
    assert answer["content-length"] is None, "it would be the length of the body a GET gets"

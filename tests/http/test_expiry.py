"""Expiry (§5.1), on a clock that only the test moves."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.answers import Answer
from tests.http.asgi import CLOSE, PRODUCER, TEXT, Door, Make
from tests.support import Clock
from tidemark.protocol.caching import CATCH_UP_INTERVAL, MARK_BITS

TTL_SECONDS = 100
WINDOW_MS = TTL_SECONDS * 1000
#: A stream may outlive its window by this much: a twentieth.
LATE_MS = WINDOW_MS // 20


def later(clock: Clock, seconds: float) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=clock.now_ms, seconds=seconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def statuses(door: Door, path: str) -> list[int]:
    """The status of each kind of request."""
    return [
        door.head(path).status,
        door.get(path).status,
        door.get(f"{path}?offset=now").status,
        door.get(f"{path}?offset=-1&live=long-poll").status,
        door.get(f"{path}?offset=now&live=sse").status,
        door.get(f"{path}?offset={1:016}&cursor={CATCH_UP_INTERVAL << MARK_BITS}").status,
        door.post(path, TEXT, b"x").status,
        door.post(path, CLOSE).status,
        door.delete(path).status,
    ]


# --- a sliding window ---------------------------------------------------------------


def test_a_stream_is_readable_until_its_ttl_is_over(door: Door, make_stream: Make, clock: Clock) -> None:
    path = make_stream(body=b"data", Stream_TTL=str(TTL_SECONDS))
    clock.advance(WINDOW_MS - 1)
    assert door.put(path, TEXT | {"Stream-TTL": str(TTL_SECONDS)}).status == 200
    assert door.head(path)["stream-ttl"] == str(TTL_SECONDS), "the whole of it, not the rest"
    clock.advance(LATE_MS + 1)
    assert statuses(door, path) == [404] * 9


READS: dict[str, Callable[[Door, str], Answer]] = {
    "data": lambda door, path: door.get(path),
    "the tail": lambda door, path: door.get(f"{path}?offset=0000000000000004"),
    "the middle": lambda door, path: door.get(f"{path}?offset=0000000000000002"),
    "now": lambda door, path: door.get(f"{path}?offset=now"),
    "not modified": lambda door, path: door.get(path, {"If-None-Match": "*"}),
    "long-poll": lambda door, path: door.get(f"{path}?offset=-1&live=long-poll"),
    "long-poll at the tail": lambda door, path: door.get(f"{path}?offset=now&live=long-poll"),
    "sse": lambda door, path: door.get(f"{path}?offset=-1&live=sse"),
    "sse at the tail": lambda door, path: door.get(f"{path}?offset=now&live=sse"),
}
WRITES: dict[str, Callable[[Door, str], Answer]] = {
    "append": lambda door, path: door.post(path, TEXT, b"x"),
    "close": lambda door, path: door.post(path, CLOSE),
    "append and close": lambda door, path: door.post(path, TEXT | CLOSE, b"x"),
    "a producer's append": lambda door, path: door.post(path, TEXT | PRODUCER, b"x"),
    "a producer's close": lambda door, path: door.post(path, PRODUCER | CLOSE),
    "a producer's append and close": lambda door, path: door.post(path, TEXT | PRODUCER | CLOSE, b"x"),
}
#: §5.1: a repeated append is a write that has succeeded for its client.
REPEATED = {"close", "a producer's append", "a producer's close", "a producer's append and close"}


@pytest.mark.parametrize(
    ("kind", "is_repeated"), [(kind, again) for kind in READS | WRITES for again in {False, kind in REPEATED}]
)
@pytest.mark.parametrize("idle_ms", [LATE_MS - 1, LATE_MS, WINDOW_MS - 1])
def test_a_read_or_a_write_renews_the_whole_ttl(  # noqa: PLR0917 - fixtures and a case
    door: Door, make_stream: Make, clock: Clock, kind: str, is_repeated: bool, idle_ms: int
) -> None:
    """A whole window begins at the last read or write, however soon that came after the one before. Then the
    stream ends."""
    path = make_stream(body=b"data", Stream_TTL=str(TTL_SECONDS))
    touch = (READS | WRITES)[kind]
    first = touch(door, path) if is_repeated else None
    clock.advance(idle_ms)
    touched = touch(door, path)
    assert touched.status in {200, 204, 304}
    assert first is None or (touched.status, touched.next_offset) == (204, first.next_offset)
    clock.advance(WINDOW_MS - 1)
    assert door.head(path).status == 200
    clock.advance(LATE_MS + 1)
    assert door.head(path).status == 404


def test_head_and_refused_requests_do_not_renew_the_ttl(door: Door, make_stream: Make, clock: Clock) -> None:
    """§5.1: HEAD does not renew. Nor does a refused request, or a request to another stream."""
    path = make_stream(body=b"data", Stream_TTL=str(TTL_SECONDS))
    door.post(path, TEXT | PRODUCER | {"Producer-Epoch": "5"}, b"x")
    for _ in range(4):
        clock.advance(WINDOW_MS // 4)
        assert door.post(path, TEXT | PRODUCER, b"x").status == 403
        assert door.head(path).status == 200
        assert door("OPTIONS", path).status == 204
        assert door.get(f"{path}?offset=x").status == 400
        assert door.post(path, {"Content-Type": "text/html"}, b"x").status == 409
        assert door.get(f"{path}/below").status == 404
    clock.advance(LATE_MS)
    assert door.head(path).status == 404


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
def test_caches_serve_no_stream_past_its_end(door: Door, make_stream: Make, clock: Clock, live: str) -> None:
    """Every number is in `protocol/test_caching.py`."""
    path = make_stream(body=b"data", Stream_Expires_At=later(clock, 3))
    url = f"{path}?offset=-1&cursor={door.cursor_of(path)}{live}"
    assert door.get(url)["cache-control"] == "public, max-age=3, stale-while-revalidate=0"
    clock.advance(2_500)
    assert door.get(url)["cache-control"] == "no-store"
    window = f"{path}/window"
    door.put(window, TEXT | {"Stream-TTL": str(TTL_SECONDS)}, b"data")
    url = f"{window}?offset=-1&cursor={door.cursor_of(window)}{live}"
    assert door.get(url)["cache-control"] == "public, max-age=60, stale-while-revalidate=45"


# --- a fixed instant ----------------------------------------------------------------


@pytest.mark.parametrize("lifetime", [{"Stream-TTL": "0"}, {"Stream-Expires-At": "1931-05-05T05:05:05Z"}])
def test_a_stream_that_ends_before_it_begins_is_created_and_has_expired(
    door: Door, path: str, lifetime: dict[str, str]
) -> None:
    """The specification names no error for it: the PUT gets 201, and so does a repeated one."""
    for _ in range(2):
        assert door.put(path, TEXT | lifetime, b"x").status == 201
        assert [door.get(path).status, door.head(path).status] == [404, 404]


# --- and again ----------------------------------------------------------------------


def test_an_expired_stream_that_is_made_again_is_empty(door: Door, make_stream: Make, clock: Clock) -> None:
    """It gets 201, not 200 or 409, and has nothing of the expired stream."""
    path = make_stream(body=b"old", Stream_TTL=str(TTL_SECONDS))
    door.post(path, TEXT | PRODUCER | CLOSE | {"Stream-Seq": "9"}, b"older")
    old = door.get(path)
    clock.advance(WINDOW_MS + LATE_MS)
    again = door.put(path, {"Content-Type": "application/json"})
    assert (again.status, again.next_offset) == (201, "0000000000000000")
    new = door.get(path, {"If-None-Match": old["etag"] or ""})
    assert (new.status, new.body) == (200, b"[]")
    json = PRODUCER | {"Content-Type": "application/json", "Stream-Seq": "1"}
    assert door.post(path, json, b"1").status == 200
    clock.advance(10 * WINDOW_MS)
    assert door.get(path).json == [1], "the old window has no say any more"

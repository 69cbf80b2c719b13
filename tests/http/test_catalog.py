"""The control surface: listings, stats, start points, and what a token may do."""

import gzip
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from tests.http.asgi import JSON, TEXT, Door
from tests.support import Clock
from tidemark.log.schema import bucket_entry_key


def stats(door: Door, path: str) -> Any:
    answer = door.get(f"/v1/stats?stream={quote(path)}")
    assert answer.status == 200, answer
    assert answer["cache-control"] == "no-store"
    return answer.json


def start(door: Door, path: str, **asked: str) -> Any:
    query = "&".join(f"{name}={quote(value)}" for name, value in asked.items())
    answer = door.get(f"/v1/start?stream={quote(path)}&{query}")
    assert answer.status == 200, answer
    return answer.json


def instant(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


#: Legal in names, though they are not seen by themselves: spaces, separators, joiners of emoji, marks.
INVISIBLE = ("\u00a0", "\u00ad", "\u2028", "\u3000", "\ufeff", "\U0001f468\u200d\U0001f469\u200d\U0001f467")


# --- listings -----------------------------------------------------------------------


def names(door: Door, query: str) -> list[str]:
    return [each["stream_id"] for each in door.get(f"/v1/streams?{query}").json["streams"]]


def test_plain_streams_are_listed_by_prefix_and_page(door: Door, path: str) -> None:
    """Every prefix and cursor is in `log/test_buckets.py`."""
    prefix = path.removeprefix("/v1/stream/") + "/"
    for name in ("b/2", "a", "b/1", "é b", *INVISIBLE):
        door.put(f"{path}/{quote(name)}", TEXT, name.encode())
    door.post(f"{path}/a", {"Stream-Closed": "true"})
    everything = names(door, f"prefix={quote(prefix)}")
    assert everything == [prefix + name for name in sorted(["a", "b/1", "b/2", "é b", *INVISIBLE])]
    for name in INVISIBLE:
        assert names(door, f"prefix={quote(prefix + name)}") == [prefix + name]
    assert names(door, f"prefix={quote(prefix)}b/") == [prefix + "b/1", prefix + "b/2"]
    page = door.get(f"/v1/streams?prefix={quote(prefix)}&limit=1&after={quote(everything[0])}").json
    assert ([each["stream_id"] for each in page["streams"]], page["stream_count"]) == (everything[1:2], 1)
    assert (page["has_more"], page["next_cursor"]) == (True, everything[1])


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("limit=0", "between 1 and 1000"),
        ("limit=ten", "got 'ten'"),
        ("limit=1&limit=2", "once"),
        ("prefix=a&prefix=b", "once"),
        (f"prefix={'x' * 1001}", "1000 bytes"),
        ("after=%00", "control characters"),
    ],
)
def test_a_wrong_listing_is_refused_with_the_reason(door: Door, query: str, reason: str) -> None:
    """Each reason of a bucket's listing is in `protocol/test_stream_key.py`."""
    for place in ("/v1/streams", "/v1/buckets", "/v1/stream/__ds/subscriptions"):
        refused = door.get(f"{place}?{query}")
        assert (refused.status, reason in str(refused.json["error"])) == (400, True), place
    assert door.get(f"/no-such-bucket/streams?{query}").status == 400


def test_buckets_are_listed_with_their_counts_until_deleted(door: Door, path: str, clock: Clock) -> None:
    prefix = f"list-{path.rpartition('/')[2]}-"
    for name in ("b", "a", "c"):
        assert door.put(f"/{prefix}{name}").status == 201
    door.put(f"/{prefix}a/run", TEXT)
    page = door.get(f"/v1/buckets?prefix={prefix}&limit=2").json
    found = [(each["bucket_id"], each["streams"]) for each in page["buckets"]]
    assert found == [(prefix + "a", 1), (prefix + "b", 0)]
    assert (page["has_more"], page["next_cursor"]) == (True, prefix + "b")
    rest = door.get(f"/v1/buckets?prefix={prefix}&after={prefix}b").json
    assert ([each["bucket_id"] for each in rest["buckets"]], rest["has_more"]) == ([prefix + "c"], False)
    for method, count in (("DELETE", 0), ("PUT", 1)):
        assert door(method, f"/{prefix}c").status in {201, 204}
        clock.advance(1)
        assert len(door.get(f"/v1/buckets?prefix={prefix}c").json["buckets"]) == count
    assert prefix + "a" in {each["bucket_id"] for each in door.get("/v1/buckets").json["buckets"]}


def test_a_bucket_and_its_entry_are_listed_only_together(door: Door, path: str) -> None:
    """Earlier versions know of no entries: they create a bucket without one, and delete one but not it."""
    bucket = f"older-{path.rpartition('/')[2]}"
    door.put(f"/{bucket}")
    door.process.stores.table.delete(bucket_entry_key(bucket))
    assert door.get(f"/v1/buckets?prefix={bucket}").json["buckets"] == []
    assert door.put(f"/{bucket}").status == 409
    assert len(door.get(f"/v1/buckets?prefix={bucket}").json["buckets"]) == 1
    door.process.stores.table.put(bucket_entry_key(f"ghost-{bucket}"))
    assert door.get(f"/v1/buckets?prefix=ghost-{bucket}").json["buckets"] == []


# --- stats --------------------------------------------------------------------------


def test_stats_of_a_stream(door: Door, path: str, clock: Clock) -> None:
    created_ms = clock()
    door.put(path, JSON | {"Stream-TTL": "100"}, b'[{"n":1},{"n":2}]')
    clock.advance(1000)
    claim = {"Producer-Id": "writer 1", "Producer-Epoch": "3", "Producer-Seq": "0"}
    door.post(path, JSON | claim | {"Stream-Closed": "true"}, b'{"n":3}')
    assert stats(door, path) == {
        "stream": path,
        "bucket_id": "v1",
        "stream_id": path.removeprefix("/v1/stream/"),
        "status": "Closed",
        "content_type": "application/json",
        "tail_offset": f"{24:016}",
        "retained_offset": f"{0:016}",
        "packed_offset": None,
        "compact": None,
        "compacted_offset": None,
        "bytes": 24,
        "messages": {"count": 3, "exact": True},
        "created_at_ms": created_ms,
        "last_write_at_ms": created_ms + 1000,
        "expiry": {"ttl_seconds": 100, "expires_at": None, "ends_at_ms": created_ms + 106_000},
        "closed_by": {"id": "writer 1", "epoch": 3, "seq": 0},
        "producers": [{"id": "writer 1", "epoch": 3, "seq": 0, "offset": f"{24:016}"}],
        "producers_complete": True,
        "forked_from": None,
        "forks": 0,
        "snapshot": None,
    }


def test_stats_of_a_fork_and_of_its_source(door: Door, path: str) -> None:
    door.put(path, JSON, b"[1,2,3]")
    fork = quote(f"{path}/ü fork")
    door.put(fork, {"Stream-Forked-From": path, "Stream-Fork-Offset": f"{4:016}"})
    door.post(fork, JSON, b"4")
    found = stats(door, fork)
    assert found["forked_from"] == {"stream": path, "offset": f"{4:016}"}
    assert (found["messages"], found["stream"]) == ({"count": 3, "exact": True}, fork)
    assert stats(door, path)["forks"] == 1


@pytest.fixture
def snapped(door: Door, path: str) -> str:
    """A stream of three messages, with a snapshot behind the second."""
    bucket = f"/snapped-{path.rpartition('/')[2]}"
    door.put(bucket)
    door.put(f"{bucket}/run", JSON, b"[1,2,3]")
    assert door.put(f"{bucket}/run/snapshot/{4:016}", JSON, b'{"sum":3}').status == 204
    return f"{bucket}/run"


def test_a_stream_with_a_snapshot_has_what_lies_behind_it(door: Door, snapped: str, clock: Clock) -> None:
    found = stats(door, snapped)
    assert (found["retained_offset"], found["bytes"]) == (f"{4:016}", 2)
    assert found["messages"] == {"count": 1, "exact": True}
    published = {"content_type": "application/json", "bytes": 9, "published_at_ms": clock()}
    assert found["snapshot"] == {"offset": f"{4:016}", **published}
    assert start(door, snapped, last="3") == {"offset": f"{4:016}", "messages": 1, "complete": True}
    refused = door.get(f"/v1/times?stream={snapped}&offset=-1")
    assert (refused.status, refused.next_offset) == (410, f"{4:016}")
    assert door.get(f"/v1/times?stream={snapped}&offset={refused.next_offset}").json["messages"] == [1]


def test_stats_include_producers_that_the_last_batch_no_longer_carries(door: Door, path: str) -> None:
    door.put(path, JSON)
    for number in range(12):
        claim = {"Producer-Id": f"!{number}", "Producer-Epoch": "0", "Producer-Seq": "0"}
        assert door.post(path, JSON | claim, b"1").status == 200
    found = stats(door, path)
    assert {each["id"] for each in found["producers"]} == {f"!{number}" for number in range(12)}
    assert len(found["producers"]) == 12
    assert found["producers_complete"]


def test_the_message_count_of_many_batches_is_an_estimate(
    door: Door, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.service.catalog._COUNTED_BATCHES", 3)
    door.put(path, JSON)
    for _ in range(10):
        door.post(path, JSON, b"[1,2]")
    assert stats(door, path)["messages"] == {"count": 20, "exact": False}


@pytest.mark.parametrize(
    ("query", "status", "reason"),
    [
        ("", 400, "stream is missing"),
        ("stream=nothing", 400, "such as /v1/stream/name"),
        ("stream=/v1/stream/a?x", 400, "such as /v1/stream/name"),
        ("stream=/agents", 400, "such as /v1/stream/name"),
        ("stream=/v1/stream/a/../b", 400, "segments"),
        ("stream=/v1/stream/missing", 404, "does not exist"),
        ("stream=/v1/stream/a&stream=/v1/stream/b", 400, "once"),
    ],
)
def test_a_missing_or_malformed_stream_is_refused_with_the_reason(
    door: Door, query: str, status: int, reason: str
) -> None:
    for place in ("/v1/stats?", "/v1/start?last=1&", "/v1/times?"):
        refused = door.get(place + query)
        assert (refused.status, reason in refused.json["error"]) == (status, True), place


# --- start points -------------------------------------------------------------------


def test_the_last_messages_of_a_fork_reach_into_its_source(door: Door, path: str) -> None:
    door.put(path, JSON, b"[1,2,3]")
    door.put(f"{path}/f", {"Stream-Forked-From": path, "Stream-Fork-Offset": f"{4:016}"})
    door.post(f"{path}/f", JSON, b"9")
    door.post(f"{path}/f", {"Stream-Closed": "true"})
    assert start(door, f"{path}/f", last="2")["offset"] == f"{2:016}"
    assert start(door, f"{path}/f", last="9") == {"offset": f"{0:016}", "messages": 3, "complete": True}


def test_counting_the_last_messages_stops_after_a_few_queries(
    door: Door, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.service.start_point.MAX_QUERIES", 1)
    door.put(path, JSON, b"1")
    for _ in range(3):
        door.post(path, JSON, b"1")
    door.put(f"{path}/f", {"Stream-Forked-From": path})
    door.post(f"{path}/f", JSON, b"1")
    assert start(door, f"{path}/f", last="3") == {"offset": f"{8:016}", "messages": 1, "complete": False}


def test_the_start_point_of_a_time_takes_few_queries(door: Door, path: str, clock: Clock) -> None:
    """More times are in `service/test_start_point.py`."""
    door.put(path, TEXT)
    assert start(door, path, **{"from": "2026-11-21T10:00Z"})["offset"] == f"{0:016}"
    for _ in range(100):
        clock.advance(1000)
        door.post(path, TEXT, b"x" * 100)
    door.process.calls.taken()
    found = start(door, path, **{"from": instant(clock() - 50_000)})
    assert found == {"offset": f"{4900:016}", "messages": None, "complete": True}
    assert door.process.calls.taken().get("Query", 0) <= 12


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "last (a number of messages) or from"),
        ("last=1&from=2026-11-21T10:00Z", "not both"),
        ("last=0", "between 1 and 10000"),
        ("last=10001", "between 1 and 10000"),
        ("from=2026-11-21T10:00", "RFC 3339"),
        ("from=2026-11-21T10:00+01:00", "%2B"),
    ],
)
def test_a_wrong_start_point_is_refused_with_the_reason(
    door: Door, make_stream: Callable[..., str], query: str, reason: str
) -> None:
    refused = door.get(f"/v1/start?stream={make_stream()}&{query}")
    assert (refused.status, reason in refused.json["error"]) == (400, True)


# --- times --------------------------------------------------------------------------


def test_the_times_of_a_page_are_those_of_its_appends(door: Door, path: str, clock: Clock) -> None:
    door.put(path, JSON, b"[1,22]")
    first_ms = clock()
    clock.advance(1500)
    door.post(path, JSON, b"[333,4,5]")
    asked = f"/v1/times?stream={quote(path)}"
    answer = door.get(asked)
    assert (answer.status, answer["content-type"]) == (200, "application/json")
    writes = {"times_ms": [first_ms, first_ms + 1500], "messages": [2, 3], "bytes": [5, 8]}
    assert answer.json == {"offset": f"{0:016}", "end_offset": f"{13:016}", **writes}
    assert door.get(f"{asked}&offset=-1").json == answer.json
    inside = door.get(f"{asked}&offset={2:016}").json
    assert (inside["messages"], inside["bytes"]) == ([1, 3], [3, 8])
    at_tail = door.get(f"{asked}&offset={13:016}")
    end = f"{13:016}"
    assert at_tail.json == {"offset": end, "end_offset": end, "times_ms": [], "messages": [], "bytes": []}
    assert at_tail["cache-control"] == "no-store"


def test_times_have_the_entity_tag_of_their_page_and_get_304(door: Door, path: str) -> None:
    door.put(path, JSON, b"[1,22]")
    asked = f"/v1/times?stream={quote(path)}&offset=-1"
    answer, page = door.get(asked), door.get(f"{path}?offset=-1")
    assert answer["etag"] == page["etag"]
    assert answer["cache-control"] == "public, no-cache"
    unchanged = door.get(asked, {"If-None-Match": answer["etag"] or ""})
    assert (unchanged.status, unchanged["etag"], unchanged.body) == (304, answer["etag"], b"")


@pytest.mark.parametrize(
    ("query", "status", "reason"),
    [
        ("offset=now", 400, "-1, or a Stream-Next-Offset"),
        ("offset=", 400, "-1, or a Stream-Next-Offset"),
        (f"offset={1:016}", 400, "not the end of a message"),
        (f"offset={5:016}", 410, "beyond the end of the stream"),
        ("offset=-1&offset=-1", 400, "once"),
    ],
)
def test_an_offset_that_has_no_times_is_refused_with_the_reason(
    door: Door, make_stream: Callable[..., str], query: str, status: int, reason: str
) -> None:
    path = make_stream("application/json", b"[1,2]")
    refused = door.get(f"/v1/times?stream={quote(path)}&{query}")
    assert (refused.status, reason in refused.json["error"]) == (status, True)


# --- the rest -----------------------------------------------------------------------


def test_without_authorization_every_client_has_every_scope(door: Door) -> None:
    scopes = ["read:*", "write:*", "manage:*", "fork:*", "proxy:*"]
    assert door.get("/v1/me").json == {"authorization": False, "token": False, "scopes": scopes}


@pytest.mark.parametrize("place", ["/v1/console", "/v1/docs"])
def test_a_console_page_loads_nothing_from_another_host(door: Door, place: str) -> None:
    """What the page itself may hold is in `infra/test_console_files.py`."""
    answer = door.get(place)
    assert (answer.status, answer["content-type"]) == (200, "text/html; charset=utf-8")
    policy = answer["content-security-policy"] or ""
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    unchanged = door.get(place, {"If-None-Match": f"W/{answer['etag']}"})
    assert (unchanged.status, unchanged.body) == (304, b"")


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [("gzip, deflate, br", True), ("br;q=1.0, GZIP;q=0.5", True), ("gzip;q=0", False), ("br", False)],
)
def test_a_console_file_is_compressed_if_accepted(door: Door, accepted: str, is_compressed: bool) -> None:
    """Each form has an entity tag of its own."""
    place = "/v1/console/console.js"
    plain, answer = (door.get(place, {"Accept-Encoding": each}) for each in ("", accepted))
    assert (answer["content-encoding"] == "gzip", answer["vary"]) == (is_compressed, "Accept-Encoding")
    assert (gzip.decompress(answer.body) if is_compressed else answer.body) == plain.body
    assert (answer["etag"] == plain["etag"]) != is_compressed
    again = door.get(place, {"Accept-Encoding": accepted, "If-None-Match": answer["etag"] or ""})
    assert (again.status, again.body) == (304, b"")


def test_only_the_consoles_own_files_are_served(door: Door) -> None:
    for name in ("nothing.js", "%2e%2e%2fapp.py", "app.py", "__init__.py", ".js"):
        assert door.get(f"/v1/console/{name}").status == 404, name

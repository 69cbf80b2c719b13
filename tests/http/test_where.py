"""Filtered reads (`where`): messages that do not match are left out, and wake nobody; offsets stay."""

import json

import pytest

from tests.answers import Answer
from tests.http.asgi import CLOSE, JSON, Door, Make, by_the_server
from tests.http.test_sse import check_order, controls, data
from tests.waiting import eventually
from tidemark.http import live
from tidemark.wake import follow

WHERE = "&where=/t:eq:%22a%22"
POLL, SSE = f"{WHERE}&live=long-poll", f"{WHERE}&live=sse"
MESSAGES = b'[{"t":"a","n":1},{"t":"b","n":2},{"t":"a","n":3.0}, {"t":"b"}]'
A, B = b'{"t":"a"}', b'{"t":"b"}'

pytestmark = [pytest.mark.usefixtures("no_polling"), pytest.mark.each_way]


def test_a_read_leaves_out_messages_that_do_not_match(door: Door, make_stream: Make) -> None:
    """Further conditions leave out more. All else is as without: where it ends, what a cache may do."""
    path = make_stream("application/json", MESSAGES)
    plain = door.get(f"{path}?offset=-1")
    for more, found in (("", [1, 3]), ("&where=/n:in:[3,9]", [3]), ("&where=/n:exists&where=/n:eq:9", [])):
        answer = door.get(f"{path}?offset=-1{WHERE}{more}")
        assert [message["n"] for message in answer.json] == found
        own = {name: answer[name] for name in ("etag", "content-length")}
        assert answer.headers == plain.headers | own
    assert door.get(f"{path}?offset=now&last=3{WHERE}").json == [{"t": "a", "n": 3.0}]
    assert door.head(f"{path}?where=ignored").status == 200


def test_the_filter_is_a_part_of_the_entity_tag(door: Door, make_stream: Make) -> None:
    """Also where no message matches, or all do."""
    path = make_stream("application/json", MESSAGES)
    for one, other in (("", "&where=/t:exists"), ("&where=/n:eq:8", "&where=/n:eq:9"), (WHERE, "")):
        tag = {"If-None-Match": door.get(f"{path}?offset=-1{one}")["etag"] or ""}
        assert [door.get(f"{path}?offset=-1{each}", tag).status for each in (one, other)] == [304, 200]


@pytest.mark.parametrize("way", ["-1", "now", "now&live=long-poll", "-1&live=sse", "now&last=1"])
def test_a_bad_condition_is_400_and_so_is_another_stream(door: Door, make_stream: Make, way: str) -> None:
    path = make_stream("text/plain", b"text")
    answers = [door.get(f"{path}?offset={way}&{where}") for where in ("where=t:eq:1", WHERE)]
    for answer, says in zip(answers, ("The pointer of where", "where selects messages of"), strict=True):
        assert (answer.status, says in answer.json["error"]) == (400, True), answer


@pytest.mark.parametrize("closes", [False, True])
def test_a_long_poll_is_woken_by_a_match_or_the_close(server: Door, path: str, *, closes: bool) -> None:
    """Here it would wait for minutes."""
    last, found = (B, b"") if closes else (A, b"[%b]" % A)

    async def poll(offset: str) -> Answer:
        async with server.open("GET", f"{path}?offset={offset}{POLL}") as exchange:
            for body in (B, B, b"[%b,%b]" % (B, last)):
                await eventually(lambda: server.backend.wake.hub._waiting)
                assert not exchange.done
                await server.ask("POST", path, JSON | (CLOSE if closes and len(body) > len(B) else {}), body)
            return await exchange.until(lambda _: exchange.done)

    server.put(path, JSON, MESSAGES)
    offset = server.head(path).next_offset or ""
    answer = server.run(poll(offset))
    assert (answer.status, answer.body) == (204 if closes else 200, found)
    assert (answer.next_offset, answer["stream-up-to-date"]) == (server.head(path).next_offset, "true")
    assert answer["stream-closed"] == ("true" if closes else None)


@pytest.mark.usefixtures("small_pages")
def test_a_long_poll_behind_the_tail_looks_at_a_page(server: Door, path: str) -> None:
    server.put(path, JSON, B)
    server.post(path, JSON, A)
    first = server.get(f"{path}?offset=-1{POLL}")
    assert (first.status, first.json, first["stream-up-to-date"]) == (200, [], None)
    assert server.get(f"{path}?offset={first.next_offset}{POLL}").json == [{"t": "a"}]


@by_the_server
async def test_the_204_of_a_long_poll_that_looked_at_a_page_has_the_offset_behind(
    server: Door, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "PAGE_BYTES", 10)
    await server.ask("PUT", path, JSON, B)
    async with server.open("GET", f"{path}?offset=-1{POLL}") as exchange:
        await eventually(lambda: server.backend.wake.hub._waiting)
        await server.ask("POST", path, JSON, B)
        answer = await exchange.until(lambda _: exchange.done)
    assert (answer.status, answer.next_offset, answer["cache-control"]) == (204, f"{20:016d}", "no-store")


@pytest.mark.usefixtures("small_pages")
@by_the_server
async def test_an_event_stream_has_events_of_matches_alone(
    server: Door, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control event at the tail stands for all pages before it that have no match."""
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 600)
    await server.ask("PUT", path, JSON, b"[%b,%b]" % (A, B))
    for body in (B, B, A, B, B):
        await server.ask("POST", path, JSON, body)
    async with server.open("GET", f"{path}?offset=-1{SSE}") as exchange:
        await exchange.until_events(5)
        await server.ask("POST", path, JSON | CLOSE, B)
        await exchange.until_done()
        events = exchange.answer.events
    check_order(events)
    assert [json.loads(text) for text in data(events)] == [[{"t": "a"}]] * 2
    assert [int(each["streamNextOffset"]) for each in controls(events)] == [20, 50, 70, 80]
    assert [each.get("upToDate") for each in controls(events)] == [None, None, True, True]


@by_the_server
async def test_an_event_stream_sends_its_offset_with_the_heartbeat(
    server: Door, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.01)
    await server.ask("PUT", path, JSON, B)
    async with server.open("GET", f"{path}?offset=now{SSE}") as exchange:
        await exchange.until_events(1)
        await server.ask("POST", path, JSON, B)
        events = await exchange.until_events(2)
    assert [each["streamNextOffset"] for each in controls(events)] == [f"{10 * n:016d}" for n in (1, 2)]
    assert not data(events)

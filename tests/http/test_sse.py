"""Server-sent events (§5.8): data, then its control event, until the end."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest

from tests.http.asgi import CLOSE, JSON, TEXT, Door, Make, by_the_server, interval
from tests.protocol.event_source import Event
from tests.support import TEXT as PLAIN
from tests.support import Clock
from tests.waiting import eventually
from tidemark.http import error_handlers, live
from tidemark.observability.metrics import FAULTS, WAKE_SECONDS, Distribution, Meter
from tidemark.protocol.caching import INTERVAL_SECONDS
from tidemark.protocol.errors import Busy, ProtocolError, StorageUnavailable
from tidemark.protocol.sse import HEARTBEAT
from tidemark.protocol.stream_key import StreamKey
from tidemark.wake import follow

BINARY = {"Content-Type": "application/octet-stream"}
SSE = "&live=sse"

pytestmark = [pytest.mark.usefixtures("no_polling"), pytest.mark.each_way]


def controls(events: list[Event]) -> list[dict[str, Any]]:
    return [json.loads(event.data) for event in events if event.type == "control"]


def data(events: list[Event]) -> list[str]:
    return [event.data for event in events if event.type == "data"]


def check_order(events: list[Event]) -> None:
    """Each data event has a control event after it, and there is no other type of event."""
    kinds = [event.type for event in events]
    assert set(kinds) <= {"data", "control"}
    assert kinds[-1] == "control"
    assert all(after == "control" for kind, after in pairwise(kinds) if kind == "data")


# --- what is there ------------------------------------------------------------------


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("piece_bytes", [live.PIECE_BYTES, 2])
def test_every_part_of_the_data_has_its_control_event(
    server: Door, path: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last one is up to date. A reader can go on from each. The close has an event of its own."""
    monkeypatch.setattr(live, "PIECE_BYTES", piece_bytes)
    server.put(path, JSON)
    for n in range(6):
        server.post(path, JSON | (CLOSE if n == 5 else {}), f"[{n}, [\n{n} ]]".encode())
    events = server.get(f"{path}?offset=-1{SSE}").events
    check_order(events)
    *told, close = controls(events)
    assert len(told) > 2
    assert [control.get("upToDate") for control in told] == [None] * (len(told) - 1) + [True]
    assert close == {"streamNextOffset": told[-1]["streamNextOffset"], "upToDate": True, "streamClosed": True}
    assert not any("streamClosed" in control for control in told)
    everything = [item for n in range(6) for item in (n, [n])]
    assert [item for text in data(events) for item in json.loads(text)] == everything
    for at, control in enumerate(told):
        rest = server.get(f"{path}?offset={control['streamNextOffset']}{SSE}").events
        assert data(rest) == data(events)[at + 1 :]


# --- what comes ---------------------------------------------------------------------


@pytest.mark.usefixtures("small_pages")
def test_a_burst_of_more_than_a_page_is_up_to_date_at_its_end(server: Door, path: str) -> None:
    """Though the first page comes from memory to a reader that was woken."""
    server.put(path, TEXT)
    key = StreamKey("v1", path.removeprefix("/v1/stream/"))

    async def follow() -> list[Event]:
        async with server.open("GET", f"{path}?offset=now{SSE}") as exchange:
            await eventually(lambda: server.backend.wake.hub._waiting)
            for body in (b"first ", b"second ", b"end"):
                await asyncio.to_thread(server.process.append, key, body, content_type=PLAIN)
            server.backend.wake.hub.wake_all()
            answer = await exchange.until(lambda answer: answer.body.count(b'"upToDate":true') == 2)
            return answer.events

    events = server.run(follow())
    assert data(events) == ["first ", "second end"]
    assert [control.get("upToDate") for control in controls(events)] == [True, None, None, True]


@pytest.mark.parametrize(("body", "headers", "shown"), [(b"", CLOSE, []), (b"end", TEXT | CLOSE, ["end"])])
@by_the_server
async def test_an_event_stream_ends_when_its_stream_is_closed(
    server: Door, path: str, body: bytes, headers: dict[str, str], shown: list[str]
) -> None:
    """A connected reader gets the last data, the close in an event behind, and the end of the response."""
    await server.ask("PUT", path, TEXT)
    async with server.open("GET", f"{path}?offset=now{SSE}") as exchange:
        await exchange.until_events(1)
        await server.ask("POST", path, headers, body)
        await exchange.until_done()
        events = exchange.answer.events
    check_order(events)
    assert data(events) == shown
    assert not any("streamClosed" in control for control in controls(events)[:-1])
    end = {"streamNextOffset": f"{len(body):016d}", "upToDate": True}
    assert controls(events)[-1] == end | {"streamClosed": True}


@pytest.mark.parametrize("failure", [StorageUnavailable(), Busy()])
def test_an_event_stream_that_cannot_be_read_on_ends_and_is_counted(
    server: Door, path: str, monkeypatch: pytest.MonkeyPatch, meter: Meter, failure: ProtocolError
) -> None:
    """Its status was 200."""

    async def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(follow.LiveRead, "next", fail)
    monkeypatch.setattr(error_handlers, "PROCESS", meter)
    server.put(path, TEXT, b"data")
    assert data(server.get(f"{path}?offset=-1{SSE}").events) == ["data"]
    assert meter.snapshot().counts.get((FAULTS, ()), 0) == (failure.status >= 500)


def test_event_streams_end_at_their_maximum(server: Door, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """§10.2: so a cache can collapse the readers' next connections. They go on from the last control
    event."""
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.01)
    server.put(path, TEXT, b"data")
    answer = server.configured(sse_seconds=0.05).get(f"{path}?offset=-1{SSE}")
    check_order(answer.events)
    assert not any("streamClosed" in control for control in controls(answer.events))


def test_an_event_source_goes_on_behind_the_last_event_it_saw(door: Door, make_stream: Make) -> None:
    """It asks for its first address again, with the id of the last event. The redirect keeps the rest of the
    query, and leads to an address that a cache tells from the first."""
    path = make_stream("application/json", b"[1]")
    first = door.get(f"{path}?offset=-1{SSE}")
    door.post(path, JSON, b"[2]")
    seen = {"Last-Event-ID": first.events[-1].last_id}
    answer = door.get(f"{path}?live=sse&offset=-1&cursor=7", seen)
    assert (answer.status, answer["cache-control"]) == (307, "no-store")
    assert answer["location"] == f"?live=sse&cursor=7&offset={first.events[-1].last_id}"
    rest = door.get(path + answer["location"], seen)
    assert data(rest.events) == ["[2]"]


@pytest.mark.parametrize("way", ["&live=sse", "&live=long-poll", "", "&last=1"])
def test_an_events_id_leads_to_no_other_stream_of_its_name(door: Door, make_stream: Make, way: str) -> None:
    """A browser sends it as `Last-Event-ID`, and a page as the offset: neither gets the end of one stream
    behind the beginning of another. The id of an earlier release was the offset alone."""
    path = make_stream("application/json", b"[1, 2]")
    (last,) = {event.last_id for event in door.get(f"{path}?offset=-1{SSE}").events}
    offset = door.head(path).next_offset
    door.delete(path)
    door.put(path, JSON, b"[3, 4, 5]")
    first = door.get(f"{path}?offset=-1{SSE}", {"Last-Event-ID": last})
    assert (first.status, first["location"]) == (307, f"?live=sse&offset={last}")
    for cursor in ("", f"&cursor={door.cursor_of(path)}"):  # What the id says counts, and not the cursor.
        refused = door.get(f"{path}?offset={last}{cursor}{way}", {"Last-Event-ID": last})
        assert refused.status == 410
        assert "deleted and created again under this name" in refused.json["error"]
    assert door.get(f"{path}?offset={offset}{way}", {"Last-Event-ID": offset}).status == 200


def test_an_event_source_at_the_end_of_a_closed_stream_is_stopped(door: Door, make_stream: Make) -> None:
    """204 ends it (HTML, server-sent events): after any other answer it asks again, for ever. Where the
    connection is lost between the last data and the close, it gets the close."""
    path = make_stream(body=b"all")
    before = door.get(f"{path}?offset=-1{SSE}").events[-1].last_id
    door.post(path, CLOSE)
    *_, data_id, last = (event.last_id for event in door.get(f"{path}?offset=-1{SSE}").events)
    assert (data_id, last) == (before, f"{before}.closed")
    for seen, status in ((last, 204), (before, 200), ("", 200)):
        answer = door.get(f"{path}?offset={seen or last}{SSE}", {"Last-Event-ID": seen})
        assert (answer.status, len(answer.events)) == (status, int(status == 200))
    assert (
        door.get(f"{path}?offset=-1{SSE}", {"Last-Event-ID": last})["location"] == f"?live=sse&offset={last}"
    )
    before = "0000000000000002"
    assert data(door.get(f"{path}?offset={before}{SSE}", {"Last-Event-ID": before}).events) == ["l"]


@pytest.mark.parametrize("last", ["now", "-1", "7", "0" * 15 + "x", "0" * 16 + ".", "0" * 16 + ".x"])
def test_an_id_that_no_event_had_is_refused(door: Door, make_stream: Make, last: str) -> None:
    path = make_stream("text/plain", b"x")
    answer = door.get(f"{path}?offset=-1{SSE}", {"Last-Event-ID": last})
    assert answer.status == 400
    assert "Last-Event-ID must be the id of an event" in answer.json["error"]
    assert door.get(f"{path}?offset=-1", {"Last-Event-ID": last}).status == 200, (
        "it is of event streams alone"
    )


# --- characters and line ends cut in two --------------------------------------------


@by_the_server
async def test_a_line_end_that_two_appends_share_is_one_for_every_reader(server: Door, path: str) -> None:
    """CRLF is one line end, however it is cut; a CR that stays alone comes with what is behind it."""
    whole = b"a\r\nb\rc\r\r\n"
    await server.ask("PUT", path, TEXT)
    async with server.open("GET", f"{path}?offset=now{SSE}") as exchange:
        await exchange.until_events(1)  # It begins at 0.
        for number, at in enumerate(range(len(whole)), start=1):
            await server.ask("POST", path, TEXT, whole[at : at + 1])
            await exchange.until(lambda answer, number=number: len(controls(answer.events)) > number)  # type: ignore[misc]
        await server.ask("POST", path, TEXT | CLOSE)
        await exchange.until_done()
        events = exchange.answer.events
    late = (await server.ask("GET", f"{path}?offset=-1{SSE}")).events
    assert "".join(data(events)) == "".join(data(late)) == "a\nb\nc\n\n"
    assert [int(control["streamNextOffset"]) for control in controls(events)][:6] == [0, 1, 1, 3, 4, 4]
    reached = [bool(control.get("upToDate")) for control in controls(events)]
    assert reached[:6] == [True, True, False, True, True, False]


@by_the_server
async def test_half_a_character_is_sent_when_the_rest_is_written(server: Door, path: str) -> None:
    """No reader gets half of a character, and it is not lost. This one begins at the tail, and sees only
    what comes."""
    euro = "€".encode()
    await server.ask("PUT", path, TEXT, b"old")
    async with server.open("GET", f"{path}?offset=now{SSE}") as exchange:
        await exchange.until_events(1)
        await server.ask("POST", path, TEXT, b"10 " + euro[:1])
        await exchange.until_events(3)
        await server.ask("POST", path, TEXT, euro[1:2])
        await exchange.until_events(4)
        await server.ask("POST", path, TEXT, euro[2:] + b"!")
        events = await exchange.until_events(6)
    assert data(events) == ["10 ", "€!"]
    assert [int(control["streamNextOffset"]) for control in controls(events)] == [3, 6, 6, 10]
    assert [control.get("upToDate") for control in controls(events)] == [True, None, None, True]
    await server.ask("POST", path, TEXT | CLOSE, b"a" + euro[:1])
    events = (await server.ask("GET", f"{path}?offset=0000000000000010{SSE}")).events
    assert data(events) == ["a\ufffd"], "no more will be written"
    assert controls(events)[-1]["streamNextOffset"] == "0000000000000012"


# --- cursors of one connection ------------------------------------------------------


def test_a_cursor_depends_on_the_clock_and_not_on_events(server: Door, path: str, clock: Clock) -> None:
    """Readers that reconnect from one offset at one time should send the same cursor, however long they were
    connected: only then can a cache collapse them (§10.1)."""
    server.put(path, TEXT)
    before = interval(clock)
    own = [server.cursor_of(path, before + intervals) for intervals in (0, 1, 10)]

    async def follow() -> list[str]:
        async with server.open("GET", f"{path}?offset=now{SSE}&cursor={own[0]}") as exchange:
            await exchange.until_events(1)
            for n in range(1, 6):
                await server.ask("POST", path, TEXT, b"x")
                await exchange.until_events(1 + 2 * n)
            clock.advance(10 * INTERVAL_SECONDS * 1000)
            await server.ask("POST", path, TEXT, b"x")
            return [control["streamCursor"] for control in controls(await exchange.until_events(13))]

    assert server.run(follow()) == [str(own[1])] * 6 + [str(own[2])]


# --- how long it took -----------------------------------------------------------------


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """That of the process counts what other servers of it do as well."""
    meter = Meter()
    monkeypatch.setattr(follow, "PROCESS", meter)
    return meter


def wakes(meter: Meter) -> Distribution:
    return meter.snapshot().distributions[WAKE_SECONDS]


@by_the_server
async def test_only_an_append_during_the_wait_counts_as_a_wake(
    server: Door, path: str, clock: Clock, meter: Meter
) -> None:
    """Data that was there before woke no reader."""
    await server.ask("PUT", path, TEXT, b"old")
    await server.ask("POST", path, TEXT, b"older than the reader")
    clock.advance(1000)
    async with server.open("GET", f"{path}?offset=-1{SSE}") as exchange:
        await exchange.until_events(2)
        for count in (4, 6):
            await server.ask("POST", path, TEXT, b"new")
            await exchange.until_events(count)
    assert wakes(meter).count == 2


@by_the_server
async def test_the_duration_of_a_late_wake_is_counted_in_full(
    server: Door, path: str, clock: Clock, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats do not shorten it: the metric must show a lost wake message."""
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.01)
    await server.ask("PUT", path, TEXT)
    async with server.open("GET", f"{path}?offset=now{SSE}") as exchange:
        await exchange.until_comment()
        key = StreamKey("v1", path.removeprefix("/v1/stream/"))
        await asyncio.to_thread(server.process.append, key, b"late", content_type=PLAIN)
        beats = exchange.received.count(HEARTBEAT)
        await exchange.until(lambda answer: answer.body.count(HEARTBEAT) > beats + 1)
        clock.advance(7000)
        server.backend.wake.hub.wake_all()
        await exchange.until_events(3)
    assert wakes(meter).count == 1
    assert wakes(meter).total_seconds == pytest.approx(7)

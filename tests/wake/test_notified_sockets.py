"""The notifier and sockets: what a connection is told, which calls that takes, and what fails."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import World, a_key
from tests.wake.support import Sockets, make_queues
from tidemark.log.records import StreamRecord, Waiter
from tidemark.log.schema import log_pk
from tidemark.log.waiters import load_waiters, put_waiter
from tidemark.protocol.caching import decide_catch_up_cursor, render_etag
from tidemark.protocol.errors import StreamNotFound
from tidemark.protocol.offset import render_offset
from tidemark.protocol.socket import MAX_FRAME_BYTES, MAX_LEASE_SECONDS
from tidemark.service.append import INLINE_BYTES
from tidemark.service.delete import delete
from tidemark.service.read import read
from tidemark.wake import notifier as notifiers
from tidemark.wake.queue import WakeMessage

LEASE_MS = MAX_LEASE_SECONDS * 1000


class Scene:
    """A writer, and the notifier with its calls counted."""

    def __init__(self, world: World, *, has_sockets: bool = True) -> None:
        self.clock, self.sockets = world.clock, Sockets()
        self.writer, self.process = world.process(), world.process()
        self.queues = make_queues()
        self.notifier = notifiers.Notifier(
            self.process.stores.table, self.queues, self.clock, self.sockets if has_sockets else None
        )

    def stream(self) -> StreamRecord:
        """With one byte in it."""
        return self.writer.create(a_key(), body=b".").head.record

    def watch(
        self,
        record: StreamRecord,
        connection: str,
        name: str = "",
        until_ms: int = LEASE_MS,
        *,
        data: bool = False,
    ) -> str:
        name = name or f"/v1/stream/{record.key.stream_id}"
        now_ms = self.clock()
        content_type = record.content_type if data else None
        waiter = Waiter(
            record.incarnation, connection, now_ms + until_ms, name, now_ms, content_type=content_type
        )
        put_waiter(self.process.stores.table, waiter)
        return name

    def notify(self, *records: StreamRecord, starts: Sequence[int] = (0,)) -> list[StreamRecord]:
        """Batches were written at these offsets of each stream. Returns those whose records come again."""
        pks = {log_pk(record.key, record.incarnation): record for record in records}
        self.process.calls.taken()
        messages = [WakeMessage(pk, start) for pk in pks for start in starts]
        return [pks[pk] for pk in self.notifier.notify(messages)]

    def watching(self, record: StreamRecord) -> list[str]:
        waiters = load_waiters(self.process.stores.table, record.incarnation, self.clock())
        return sorted(waiter.address for waiter in waiters)


@pytest.fixture
def scene(world: World) -> Iterator[Scene]:
    made = Scene(world)
    yield made
    for url in made.queues.all():
        made.queues.delete(url)


def moved(name: str, offset: int) -> dict[str, Any]:
    return {"stream": name, "offset": render_offset(offset)}


def ended(name: str) -> dict[str, Any]:
    return {"stream": name, "status": 404, "error": StreamNotFound().message}


def test_a_connection_is_told_where_the_tail_is_however_many_records_there_are(scene: Scene) -> None:
    """Two queries for the log, and no data. The watch goes on."""
    record = scene.stream()
    name = scene.watch(record, "a")
    for body in (b"one", b"two"):
        scene.writer.append(record.key, body)
    assert scene.notify(record, record) == []
    assert scene.process.calls.taken() == {"Query": 2}
    assert scene.sockets.messages("a") == [moved(name, 7)]
    assert scene.watching(record) == ["a"]


def test_a_connection_that_wants_data_gets_those_of_all_records_by_the_same_calls(scene: Scene) -> None:
    """Another one, which does not, is told the tail."""
    record = scene.stream()
    name = scene.watch(record, "a", data=True)
    scene.watch(record, "b")
    for body in (b"one", b"two"):
        scene.writer.append(record.key, body)
    assert scene.notify(record, starts=[4, 1]) == []
    assert scene.process.calls.taken() == {"Query": 2}
    [message] = scene.sockets.messages("a")
    data = {"from": render_offset(1), "data": "onetwo", "type": "application/octet-stream"}
    cursor = decide_catch_up_cursor(None, record.incarnation)
    assert message == moved(name, 7) | data | {"cursor": cursor, "etag": etag_of(scene, record, 1)}
    assert scene.sockets.messages("b") == [moved(name, 7)]
    scene.writer.append(record.key, b"", close=True)
    assert scene.notify(record, starts=[7]) == []
    [last] = scene.sockets.messages("a")
    assert (last["data"], last["from"], last["closed"]) == ("", render_offset(7), True)


def etag_of(scene: Scene, record: StreamRecord, start: int) -> str:
    """That of a read."""
    page = read(scene.writer.stores, record.key, start).page
    return render_etag(record.incarnation, page.start, page.end, closed=page.closed, crc=page.crc)


@pytest.mark.parametrize(
    ("bodies", "starts", "start"),
    [
        ([b"a", b"b"], [2], 2),
        ([b"a", b"b"], [1], 1),
        ([b"a", b"b"], [1, 2], 1),
        ([b"a", b"b", b"c"], [1], 1),
        ([b"a"] * 10, [1], 3),  # A few at most are read.
        ([b"a", b"x" * INLINE_BYTES + b"x", b"b"], [1, 2, INLINE_BYTES + 3], INLINE_BYTES + 3),
        ([b"x" * 20_000, b"y" * 20_000], [1, 20_001], None),
        ([b"a", b"x" * INLINE_BYTES + b"x"], [1, 2], None),
    ],
)
def test_data_begin_at_the_first_record_or_later_and_fit_a_frame(
    scene: Scene, bodies: list[bytes], starts: Sequence[int], start: int | None
) -> None:
    record = scene.stream()
    name = scene.watch(record, "a", data=True)
    for body in bodies:
        scene.writer.append(record.key, body)
    assert scene.notify(record, starts=starts) == []
    [message] = scene.sockets.messages("a")
    stored = b"." + b"".join(bodies)
    if start is None:
        assert message == moved(name, len(stored))
    else:
        assert (message["from"], message["data"]) == (render_offset(start), stored[start:].decode())


def test_a_log_that_no_socket_watches_any_more_costs_one_query(scene: Scene) -> None:
    record, url = scene.stream(), scene.queues.create(scene.clock())
    put_waiter(scene.process.stores.table, Waiter(record.incarnation, url, scene.clock() + LEASE_MS))
    scene.watch(record, "lapsed", until_ms=0)
    assert scene.notify(record) == []
    assert scene.process.calls.taken() == {"Query": 1}
    assert (len(scene.queues.receive(url, 1)), scene.sockets.messages("lapsed")) == (1, [])


def test_many_logs_of_a_connection_are_one_frame_and_more_where_they_do_not_fit(scene: Scene) -> None:
    """A stream is told once, by its latest name. A name may be long, and a frame may not."""
    records = [scene.stream() for _ in range(15)]
    names = {scene.watch(record, "b") for record in records[1:]}
    scene.watch(records[0], "b")
    scene.clock.advance(1)
    names.add(scene.watch(records[0], "b", "/v1/stream/%61"))
    scene.watch(records[1], "other")
    assert scene.notify(*records) == []
    assert len(scene.sockets.frames["b"]) == 1
    assert sorted(each["stream"] for each in scene.sockets.messages("b")) == sorted(names)
    assert len(scene.sockets.messages("other")) == 1
    long = [scene.watch(record, "c", f"/{number}{'x' * 3000}") for number, record in enumerate(records)]
    assert scene.notify(*records) == []
    assert [len(frame) <= MAX_FRAME_BYTES for frame in scene.sockets.frames["c"]] == [True, True]
    assert sorted(each["stream"] for each in scene.sockets.messages("c")) == sorted(long)


def test_a_stream_that_is_closed_or_deleted_ends_its_watches(scene: Scene) -> None:
    """And no others: they are removed, so that the next records of such a log tell nobody."""
    closed, deleted, both, living = (scene.stream() for _ in range(4))
    names = [scene.watch(record, "d") for record in (closed, deleted, both, living)]
    for record in (closed, both):
        scene.writer.append(record.key, b"end", close=True)
    for record in (deleted, both):
        delete(scene.writer.stores, record.key)
    assert scene.notify(closed, deleted, both, living) == []
    told = {each["stream"]: each for each in scene.sockets.messages("d")}
    ends = [moved(names[0], 4) | {"closed": True}, *map(ended, names[1:3])]
    assert list(map(told.get, names)) == [*ends, moved(names[3], 1)]
    assert [scene.watching(record) for record in (closed, deleted, both, living)] == [[], [], [], ["d"]]
    assert scene.process.calls.taken()["BatchWriteItem"] == 1


def test_a_connection_that_is_gone_is_no_failure_and_its_watches_are_removed(scene: Scene) -> None:
    first, second = scene.stream(), scene.stream()
    for record in (first, second):
        scene.watch(record, "gone")
        scene.watch(record, "here")
    scene.sockets.failures["gone"] = notifiers.SocketGone()
    assert scene.notify(first, second) == []
    assert len(scene.sockets.messages("here")) == 2
    assert scene.watching(first) == scene.watching(second) == ["here"]


def test_connections_of_an_api_that_the_stack_no_longer_has_are_gone(world: World) -> None:
    """`Sockets` was set to false a while ago. Their records must not hold up the others."""
    scene = Scene(world, has_sockets=False)
    record = scene.stream()
    scene.watch(record, "f")
    assert scene.notify(record) == []
    assert scene.watching(record) == []


def test_only_records_of_logs_that_could_not_be_told_come_again(scene: Scene) -> None:
    """And their watches stand, also those of streams that have ended: they are told then."""
    stuck, fine = scene.stream(), scene.stream()
    scene.watch(stuck, "unreachable")
    scene.watch(stuck, "g")
    scene.watch(fine, "g")
    scene.writer.append(stuck.key, b"end", close=True)
    scene.sockets.failures["unreachable"] = notifiers.SocketUnavailable()
    assert scene.notify(stuck, fine) == [stuck]
    assert len(scene.sockets.messages("g")) == 2
    scene.sockets.failures.clear()
    assert scene.notify(stuck) == []
    assert [each["closed"] for each in scene.sockets.messages("unreachable")] == [True]
    assert scene.watching(stuck) == []


def test_sockets_that_hang_do_not_hold_up_processes_with_all_their_readers(scene: Scene) -> None:
    """There are more of them than threads."""
    record, table, is_told = scene.stream(), scene.process.stores.table, threading.Event()
    for number in range(40):
        scene.watch(record, f"hanging-{number}")
    put_waiter(table, Waiter(record.incarnation, "queue", scene.clock() + LEASE_MS))

    def hang(*_: object) -> None:
        assert is_told.wait(60)

    queues: Any = SimpleNamespace(send=lambda *_: is_told.set())
    sockets: Any = SimpleNamespace(send=hang)
    notifier = notifiers.Notifier(table, queues, scene.clock, sockets)
    assert notifier.notify([WakeMessage(log_pk(record.key, record.incarnation), 0)]) == {}


def test_slow_sockets_leave_time_to_others_and_are_served_when_the_records_come_again(scene: Scene) -> None:
    """Subscriptions wait for the same records. Whoever was left out is not left out every time."""
    record, told, lock = scene.stream(), Counter[str](), threading.Lock()
    connections = {f"slow-{number}" for number in range(100)}
    for connection in connections:
        scene.watch(record, connection)

    def send(connection: str, _frames: object) -> None:
        with lock:
            told[connection] += 1
            scene.clock.advance(notifiers.SOCKETS_MS // 40)

    sockets: Any = SimpleNamespace(send=send)
    notifier = notifiers.Notifier(scene.process.stores.table, scene.queues, scene.clock, sockets)
    while told.keys() < connections:
        before = told.total()
        assert list(notifier.notify([WakeMessage(log_pk(record.key, record.incarnation), 0)]))
        assert 40 <= told.total() - before < 80


def test_a_tail_that_cannot_be_read_is_told_later(scene: Scene) -> None:
    record = scene.stream()
    scene.watch(record, "h")
    send = scene.process.dynamodb.send

    def broken(operation: str, body: bytes) -> tuple[int, bytes]:
        if record.key.stream_id.encode() in body:
            return 400, b'{"__type": "x#AccessDeniedException", "message": "broken by the test"}'
        return send(operation, body)

    scene.process.dynamodb.send = broken
    assert scene.notify(record) == [record]
    assert scene.sockets.messages("h") == []
    scene.process.dynamodb.send = send
    assert scene.notify(record) == []
    assert len(scene.sockets.messages("h")) == 1


def test_the_sweep_removes_lapsed_watches_and_takes_no_connection_for_a_queue(scene: Scene) -> None:
    _, record = scene.queues.create(scene.clock()), scene.stream()
    scene.watch(record, "standing")
    scene.watch(record, "i", until_ms=-notifiers.LAPSED_MS)
    scene.clock.advance(notifiers.ORPHAN_MS)
    swept = notifiers.sweep_queues(scene.process.stores.table, scene.queues, scene.clock())
    assert (swept.queues, swept.waiters) == (1, 1)
    assert scene.watching(record) == ["standing"]

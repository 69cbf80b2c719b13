"""Many writers at once, with everything that a network and a busy table do to them.

Whatever happens, each acknowledged append is in the stream exactly once, and the messages
of one append stand together.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest

from tests.support import JSON, Faults, Process, World, a_key, append_request, before
from tidemark.http.backend import many_at_once
from tidemark.protocol.errors import Busy, OutcomeUnknown
from tidemark.protocol.messages import render_body
from tidemark.protocol.stream_key import StreamKey
from tidemark.settings import Settings

WRITERS = 16
APPENDS = 12
PER_APPEND = 3

FAULTS = {
    "none": {},
    "lost replies": {"lost": 0.15},
    "throttling": {"throttled": 0.15},
    "conflicts": {"conflicted": 0.15},
    "all of them": {"lost": 0.08, "throttled": 0.08, "conflicted": 0.08},
}


def body_of(writer: int, index: int) -> bytes:
    return orjson.dumps([[writer, index, part] for part in range(PER_APPEND)])


def check_stream(process: Process, key: StreamKey, acknowledged: set[tuple[int, int]]) -> None:
    messages = orjson.loads(render_body(JSON, process.read_all(key)))
    appends = []
    for start in range(0, len(messages), PER_APPEND):
        group = messages[start : start + PER_APPEND]
        writer, index, _ = group[0]
        assert group == [[writer, index, part] for part in range(PER_APPEND)], "contiguous"
        appends.append((writer, index))
    assert len(appends) == len(set(appends)), "nothing twice"
    assert acknowledged <= set(appends), "nothing lost"
    for writer in range(WRITERS):
        own = [index for of, index in appends if of == writer]
        assert own == sorted(own), "a writer's appends in its order"


def run_writers(write: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))


@pytest.mark.parametrize("streams", [1, WRITERS], ids=["one stream", "a stream each"])
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_writers_in_several_processes_lose_no_append(
    world: World, streams: int, faults: dict[str, float]
) -> None:
    """Processes as Lambda has them: each append on its own, racing for the tail."""
    processes = [world.process() for _ in range(4)]
    keys = [a_key() for _ in range(streams)]
    for key in keys:
        processes[0].create(key, content_type=JSON)
    for seed, process in enumerate(processes):
        Faults(process.dynamodb, seed, **faults)
    acknowledged: list[set[tuple[int, int]]] = [set() for _ in keys]

    def write(writer: int) -> None:
        process, stream = processes[writer % len(processes)], writer % streams
        for index in range(APPENDS):
            try:
                process.append(keys[stream], body_of(writer, index), content_type=JSON)
            except (Busy, OutcomeUnknown):
                continue  # Not acknowledged: it may be there or not, but not twice.
            acknowledged[stream].add((writer, index))

    run_writers(write)
    assert sum(map(len, acknowledged)) > WRITERS * APPENDS // 2
    for key, of_stream in zip(keys, acknowledged, strict=True):
        check_stream(world.process(), key, of_stream)


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_producers_that_retry_append_exactly_once(world: World, faults: dict[str, float]) -> None:
    """Idempotent producers on one stream, more than a batch carries: all of it, once, in order."""
    processes = [world.process() for _ in range(4)]
    key = a_key()
    processes[0].create(key, content_type=JSON)
    for seed, process in enumerate(processes):
        Faults(process.dynamodb, seed, **faults)

    def write(writer: int) -> None:
        for index in range(APPENDS // 2):
            for attempt in range(50):
                # Every try goes to another process, as a load balancer would send it.
                process = processes[(writer + attempt) % len(processes)]
                try:
                    claim = (f"producer-{writer}", 0, index)
                    process.append(key, body_of(writer, index), content_type=JSON, claim=claim)
                    break
                except (Busy, OutcomeUnknown):
                    continue
            else:
                raise AssertionError("never acknowledged")

    run_writers(write)
    everything = {(writer, index) for writer in range(WRITERS) for index in range(APPENDS // 2)}
    check_stream(world.process(), key, everything)


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_appends_that_wait_for_one_tail_share_one_write(world: World, faults: dict[str, float]) -> None:
    """One process that serves many requests: appends share writes, answers stay their own."""
    process, key = world.process(), a_key()
    process.create(key, content_type=JSON)
    writes = count_writes(process)
    Faults(process.dynamodb, seed=7, **faults)
    backend = many_at_once(process.stores, Settings())
    acknowledged: set[tuple[int, int]] = set()
    offsets: list[int] = []

    async def write(writer: int) -> None:
        for index in range(APPENDS):
            request = append_request(body_of(writer, index), content_type=JSON)
            try:
                outcome = await backend.append(key, request)
            except (Busy, OutcomeUnknown):
                continue
            acknowledged.add((writer, index))
            offsets.append(outcome.next_offset)

    async def write_all() -> None:
        await asyncio.gather(*map(write, range(WRITERS)))
        await backend.close()

    asyncio.run(write_all())
    assert len(offsets) == len(set(offsets)), "each append has an offset of its own"
    check_stream(world.process(), key, acknowledged)
    assert len(writes) < WRITERS * APPENDS // 4, "writes are shared"


def count_writes(process: Process) -> list[str]:
    writes: list[str] = []
    before(process.dynamodb, writes.append)
    return writes


def test_a_refused_append_does_not_fail_the_others_of_its_group(world: World) -> None:
    """A gap, a duplicate, a wrong type and a close, decided in the order they came."""
    process, key = world.process(), a_key()
    process.create(key)
    backend = many_at_once(process.stores, Settings())
    requests = [
        append_request(b"a", claim=("p", 0, 0)),
        append_request(b"a", claim=("p", 0, 0)),
        append_request(b"b", claim=("p", 0, 5)),
        append_request(b"{}", content_type=JSON),
        append_request(b"c", seq="2"),
        append_request(b"d", seq="1"),
        append_request(b"e", close=True),
        append_request(b"f"),
    ]

    async def append_all() -> list[object]:
        tasks = (backend.append(key, request) for request in requests)
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(append_all())
    names = [type(answer).__name__ for answer in answers]
    assert names == [
        "Outcome",
        "Outcome",
        "SequenceGap",
        "ContentTypeMismatch",
        "Outcome",
        "SequenceRegression",
        "Outcome",
        "StreamClosed",
    ]
    assert process.read_all(key) == b"ace"


def test_a_client_that_leaves_does_not_cancel_the_appends_of_its_group(world: World) -> None:
    process, key = world.process(), a_key()
    process.create(key)
    backend = many_at_once(process.stores, Settings())
    sent = threading.Event()
    before(process.dynamodb, lambda _: sent.set())

    async def cancel_one() -> list[object]:
        appends = (backend.append(key, append_request(b"x")) for _ in range(3))
        tasks = [asyncio.ensure_future(one) for one in appends]
        await asyncio.to_thread(sent.wait, 30)
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(cancel_one())
    assert [type(answer).__name__ for answer in answers[1:]] == ["Outcome", "Outcome"]
    assert process.read_all(key) == b"xxx"

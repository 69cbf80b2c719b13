"""One process that serves many writers, with everything that a network and a busy table do to it. (Writers in
several processes: `tests/simulation` and the campaign.)

Whatever happens, each acknowledged append is in the stream exactly once, and the messages
of one append stand together.
"""

from __future__ import annotations

import asyncio

import orjson
import pytest

from tests.support import JSON, Faults, Process, World, a_key, append_request, before
from tidemark.http.backend import threaded_backend
from tidemark.protocol.errors import Busy, OutcomeUnknown
from tidemark.protocol.messages import render_body
from tidemark.protocol.stream_key import StreamKey
from tidemark.settings import Settings

WRITERS = 16
APPENDS = 12
PER_APPEND = 3
FAULTS = {"no fault": {}, "every fault": {"lost": 0.08, "throttled": 0.08, "conflicted": 0.08}}


@pytest.fixture(params=list(FAULTS.values()), ids=list(FAULTS))
def shares(request: pytest.FixtureRequest) -> dict[str, float]:
    return dict(request.param)


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


def test_appends_that_wait_for_one_tail_share_one_write(world: World, shares: dict[str, float]) -> None:
    """One process that serves many requests: appends share writes, answers stay their own."""
    process, key, writes = world.process(), a_key(), list[str]()
    process.create(key, content_type=JSON)
    before(process.dynamodb, writes.append)
    Faults(process.dynamodb, seed=7, **shares)
    backend = threaded_backend(process.stores, Settings())
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


def test_a_refused_append_does_not_fail_the_others_of_its_group(world: World) -> None:
    """A gap, a duplicate, a wrong type and a close, decided in the order they came."""
    process, key = world.process(), a_key()
    process.create(key)
    backend = threaded_backend(process.stores, Settings())
    requests = {
        append_request(b"a", claim=("p", 0, 0)): "Outcome",
        append_request(b"A", claim=("p", 0, 0)): "Outcome",
        append_request(b"b", claim=("p", 0, 5)): "SequenceGap",
        append_request(b"{}", content_type=JSON): "ContentTypeMismatch",
        append_request(b"c", seq="2"): "Outcome",
        append_request(b"d", seq="1"): "SequenceRegression",
        append_request(b"e", close=True): "Outcome",
        append_request(b"f"): "AppendAfterClose",
    }

    async def append_all() -> list[object]:
        tasks = (backend.append(key, request) for request in requests)
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(append_all())
    assert [type(answer).__name__ for answer in answers] == list(requests.values())
    assert process.read_all(key) == b"ace"

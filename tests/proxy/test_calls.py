"""A call whose process ends, whose storage fails, or which is deleted while its process goes on."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.proxy.conftest import Behaviour, Upstream, never_ends, says, steps
from tests.waiting import PATIENCE_SECONDS
from tidemark.outbound.request import RequestBody
from tidemark.protocol.append import Outcome
from tidemark.protocol.errors import OutcomeUnknown, StreamNotFound
from tidemark.protocol.offset import EARLIEST
from tidemark.protocol.proxy import parse_allowed
from tidemark.protocol.stream_key import StreamKey
from tidemark.proxy import calls, pipe
from tidemark.proxy.calls import ANSWERS, BYTES, Calls, UpstreamRequest, answer_key
from tidemark.proxy.pipe import carry_out
from tidemark.server.system import EmbeddedSystem
from tidemark.service.append import AppendRequest
from tidemark.service.delete import delete
from tidemark.service.read import Reading, read
from tidemark.service.stores import Stores
from tidemark.settings import Settings

ID = "0" * 36


@dataclass
class Storage:
    """Calls in a system in memory. `append` may be replaced by a test."""

    system: EmbeddedSystem
    upstream: Upstream

    def calls(self, append: Callable[..., Awaitable[Outcome]] | None = None) -> Calls:
        return Calls(self.system.backend, append or self.system.backend.append)

    async def begin(self) -> UpstreamRequest:
        incarnation = await self.calls().begin(ID)
        assert incarnation is not None
        return UpstreamRequest(ID, f"{self.upstream.url}/chat", "POST", (), RequestBody(b""), incarnation)

    def piping(self, order: UpstreamRequest, of: Calls | None = None) -> asyncio.Task[None]:
        entries = parse_allowed(f"{self.upstream.url}/*")
        return asyncio.create_task(carry_out(of or self.calls(), order, entries))

    async def answer(self) -> Reading:
        reading: Reading = await self.system.backend.call(read, answer_key(ID), EARLIEST)
        return reading

    async def answered(self, data: bytes) -> None:
        """Wait until the answer has `data`."""
        while True:
            with suppress(StreamNotFound):
                if (await self.answer()).data == data:
                    return
            await asyncio.sleep(0.01)

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def in_time() -> None:
            with self.system.working(janitor_seconds=0):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await scenario()

        asyncio.run(in_time())


@pytest.fixture
def storage(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    monkeypatch.setattr(pipe, "_PAUSES", (0.01,))
    system = EmbeddedSystem(Settings(), None, tmp_path)
    yield Storage(system, upstream)
    system.close()


def test_a_process_that_ends_in_the_middle_of_a_write_closes_the_answer_behind_it(storage: Storage) -> None:
    """The write has no answer yet, so its sequence number may be used or not."""
    storage.upstream.behave = never_ends

    async def scenario() -> None:
        under_way, go_on = asyncio.Event(), asyncio.Event()

        async def append(key: StreamKey, request: AppendRequest) -> Outcome:
            if key.bucket == ANSWERS and request.body:
                under_way.set()
                await go_on.wait()
            return await storage.system.backend.append(key, request)

        task = storage.piping(await storage.begin(), storage.calls(append))
        await under_way.wait()
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(task, return_exceptions=True)
        reading, call = await storage.answer(), await storage.calls().load(ID)
        assert (reading.data, reading.page.closed) == (b"first ", True)
        assert (call.error, call.has_ended) == ("cut off: the server ended", True)

    storage.run(scenario)


@pytest.mark.parametrize(
    ("behave", "failures", "error"), [(says(b"first "), 1, ""), (never_ends, 9, "cut off: the server failed")]
)
def test_an_answer_whose_write_has_an_unknown_outcome_is_closed_behind_it(
    storage: Storage, behave: Behaviour, failures: int, error: str
) -> None:
    storage.upstream.behave = behave
    left = failures

    async def append(key: StreamKey, request: AppendRequest) -> Outcome:
        nonlocal left
        outcome = await storage.system.backend.append(key, request)
        if key.bucket == ANSWERS and request.body and left:
            left -= 1
            raise OutcomeUnknown
        return outcome

    async def scenario() -> None:
        await storage.piping(await storage.begin(), storage.calls(append))
        reading, call = await storage.answer(), await storage.calls().load(ID)
        assert (reading.data, reading.page.closed) == (b"first ", True)
        assert call.error == error

    storage.run(scenario)


@pytest.mark.parametrize(
    ("died_before", "error"),
    [
        ("the error", calls.LOST),
        ("the answer's close", "cut off: the server ended"),
        ("the call's close", "cut off: the server ended"),
        ("the call's close", ""),
    ],
)
def test_whoever_finds_a_lost_call_ends_it(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, died_before: str, error: str
) -> None:
    """Its process died while it ended the call."""
    data = b"first " if error else b"whole"
    storage.upstream.behave = never_ends if error else says(data)
    is_dead = False

    async def append(key: StreamKey, request: AppendRequest) -> Outcome:
        nonlocal is_dead
        name = "the answer's" if key.bucket == ANSWERS else "the call's"
        step = "the error" if b'"error":"cut' in request.body else f"{name} close" if request.close else ""
        is_dead = is_dead or step == died_before
        if is_dead:
            raise RuntimeError("the process is dead")
        return await storage.system.backend.append(key, request)

    async def scenario() -> None:
        task = storage.piping(await storage.begin(), storage.calls(append))
        await storage.answered(data)
        if error:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert is_dead
        clock_ms = storage.system.stores.clock_ms
        left = await storage.calls().load(ID)
        assert await storage.calls().end_if_lost(ID, left) == left, "its lease holds"
        monkeypatch.setattr(storage.system.stores, "clock_ms", lambda: clock_ms() + calls.LEASE_MS)
        found = await storage.calls().end_if_lost(ID, left)
        assert (found.error, found.has_ended) == (error, True)
        assert (await storage.answer()).page.closed
        assert await storage.calls().load(ID) == found

    storage.run(scenario)


def test_a_process_whose_call_was_deleted_writes_nothing_into_the_next_one(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it does not learn of the removal, and the next call has the same id."""
    until, removed = Calls.until, list[str]()

    def remove(stores: Stores, key: StreamKey) -> None:
        removed.append(key.bucket)
        delete(stores, key)

    monkeypatch.setattr(calls, "delete", remove)

    async def scenario() -> None:
        storage.upstream.behave = steps(b"old 1 ", b"old 2 ")
        old = await storage.begin()
        monkeypatch.setattr(Calls, "until", lambda *_given: asyncio.sleep(PATIENCE_SECONDS))
        piping = storage.piping(old)
        await storage.answered(b"old 1 ")
        monkeypatch.setattr(Calls, "until", until)
        await storage.calls().remove(ID)
        storage.upstream.behave = steps(b"new 1 ", b"new 2 ")
        assert removed == [ANSWERS, calls.CALLS], "the next call's answer is not removed with this call"
        new = await storage.begin()
        assert new.incarnation != old.incarnation
        assert [await storage.calls().take(order) for order in (old, new, new)] == [False, True, False]
        with pytest.raises(StreamNotFound):
            await storage.calls().until(ID, lambda _: True, PATIENCE_SECONDS, old.incarnation)
        repeated = storage.piping(new)
        await storage.answered(b"new 1 ")
        storage.upstream.go_on.set()
        await asyncio.gather(piping, repeated)
        reading, call = await storage.answer(), await storage.calls().load(ID)
        assert (reading.data, reading.page.closed) == (b"new 1 new 2 ", True)
        assert (call.error, call.has_ended) == ("", True)

    storage.run(scenario)


def test_the_news_that_a_call_is_another_one_stops_its_process(storage: Storage) -> None:
    storage.upstream.behave = never_ends

    async def scenario() -> None:
        old = await storage.begin()
        piping = storage.piping(old)
        await storage.answered(b"first ")
        await storage.calls().remove(ID)
        await storage.begin()
        await piping
        await asyncio.to_thread(storage.upstream.go_on.set)
        assert await asyncio.to_thread(storage.upstream.was_left.wait, PATIENCE_SECONDS)

    storage.run(scenario)


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_answer_that_outlived_its_call_is_not_continued(storage: Storage, is_closed: bool) -> None:
    """It was read for longer than its call, which has expired. The next call of this id fails, and a
    repetition takes another id."""
    storage.upstream.behave = says(b"one")

    async def scenario() -> None:
        if is_closed:
            await storage.piping(await storage.begin())
        else:
            await storage.calls().open_answer(await storage.begin(), "text/plain")
            await storage.system.backend.append(answer_key(ID), AppendRequest(BYTES, b"one"))
        await storage.system.backend.call(delete, calls.call_key(ID))
        storage.upstream.behave = says(b"two")
        await storage.piping(await storage.begin())
        call = await storage.calls().load(ID)
        assert (call.has_failed, call.has_ended) == (True, True)
        assert (await storage.answer()).data == b"one"

    storage.run(scenario)


def test_a_call_that_was_taken_for_lost_gets_no_answer_any_more(storage: Storage) -> None:
    """A repetition makes another call, so nobody would ever have the answer's URL."""

    async def scenario() -> None:
        order = await storage.begin()
        await storage.calls().end(ID)
        with pytest.raises(StreamNotFound):
            await storage.calls().open_answer(order, "text/plain")
        call = await storage.calls().load(ID)
        assert (call.error, call.content_type, call.has_failed) == (calls.LOST, None, True)
        assert await storage.calls().until(ID, lambda _: False, 1.0) == call, "no entry follows"

    storage.run(scenario)

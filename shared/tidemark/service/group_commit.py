"""Group commit: concurrent appends of one process to one stream share a write.

While a write to a stream is under way, further appends wait in a queue, and the next write takes the whole
queue. Every append is decided in order and answered on its own (`docs/internals/races.md`).

A waiting append has written nothing, so it can be cancelled: when its client disconnects, after TURN_SECONDS,
or when the write before got no answer, because the next write would most likely get none either. A request
that was sent is never cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tidemark.protocol.append import Outcome
from tidemark.protocol.errors import OutcomeUnknown, ProtocolError, StorageSilent, StorageUnavailable
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import INLINE_BYTES, AppendRequest, Spilled, append, spill
from tidemark.service.stores import Run, Stores

#: Most appends in a group. Bounds the item's other attributes, and the work of deciding again after a loss.
MAX_GROUP: Final = 64
#: Most seconds that an append waits for its turn. A call without an answer ends after 13 seconds at most
#: (`aws/retry.py`), so that the sum stays below a gateway's 30.
TURN_SECONDS: Final = 10.0
#: Seconds after which an append watches whether its client disconnects. Most wait for a few milliseconds, and
#: are spared the effort.
UNWATCHED_SECONDS: Final = 1.0


class ClientLeft(ProtocolError):
    """The client has disconnected and does not get this response. An append that was sent by then stands."""

    status = 499

    def __init__(self) -> None:
        super().__init__("The client has left")


Left = Callable[[], Awaitable[Any]]
"""Returns when the client has disconnected."""


@dataclass(slots=True, eq=False)
class _Waiting:
    request: AppendRequest
    answer: asyncio.Future[Outcome]
    #: Done with the answer, or after UNWATCHED_SECONDS. A future costs a fraction of `asyncio.wait`.
    moved: asyncio.Future[None]
    #: Of the request; the write of a group belongs to its first append (`observability/tracing.py`).
    context: Context = field(default_factory=copy_context)
    #: A large body is on its way to S3.
    is_spilling: bool = False
    spilled: Spilled | None = None
    is_sent: bool = False

    def move(self) -> None:
        if not self.moved.done():
            self.moved.set_result(None)

    def settle(self, answer: Any) -> None:
        self.move()
        if self.answer.done():  # The client has disconnected; a sent append stands.
            return
        if isinstance(answer, ProtocolError):
            answer.without_frames()
        if isinstance(answer, BaseException):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)

    def depends_on(self, earlier: _Waiting) -> bool:
        """Whether the order of the two appends may change their outcomes."""
        one, other = self.request, earlier.request
        if one.close or other.close or (one.stream_seq is not None and other.stream_seq is not None):
            return True
        if one.claim is None or other.claim is None:
            return False
        return one.claim.producer_id == other.claim.producer_id


class GroupCommit:
    """Appends of one process, gathered by stream. Used from one event loop."""

    def __init__(self, stores: Stores, run: Run, committed: Callable[[StreamKey], None]) -> None:
        self._stores = stores
        self._run = run
        self._committed = committed
        self._streams: dict[StreamKey, _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, key: StreamKey, request: AppendRequest, left: Left | None = None) -> Outcome:
        """Raises the error that refuses this append or stops its whole group; StorageUnavailable if the
        append was not sent in time; ClientLeft soon after `left` returns, if the append had to wait."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, loop.create_future(), loop.create_future())
        queue = self._streams.get(key)
        is_first = queue is None
        if queue is None:
            queue = self._streams[key] = _Queue()
            self._start(self._drain(key, queue))
        queue.add(waiting)
        if len(request.body) > INLINE_BYTES:
            waiting.is_spilling = True
            self._start(self._spill(key, queue, waiting))
        elif is_first:
            return await waiting.answer  # Sent in the loop's next turn.
        return await _turn(waiting, left)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _spill(self, key: StreamKey, queue: _Queue, waiting: _Waiting) -> None:
        """Put the body into S3 before the append's turn, so that no other append waits for S3. If S3 refuses
        the body, the append is refused: nothing points to the body yet."""
        try:
            waiting.spilled = await self._run(partial(spill, self._stores, key, waiting.request))
        except Exception as failure:  # noqa: BLE001 - whatever it is, the waiting request must hear of it
            waiting.settle(failure)
        waiting.is_spilling = False
        queue.changed.set()

    async def _drain(self, key: StreamKey, queue: _Queue) -> None:
        """Commit group after group until no append waits. A cancelled request does not cancel this task,
        because other requests wait too."""
        while queue.waiting:
            group = queue.take_group()
            if not group:
                queue.changed.clear()
                await queue.changed.wait()
                continue
            failure = await self._commit(key, group)
            if isinstance(failure, OutcomeUnknown | StorageSilent):
                for waiting in queue.waiting:
                    waiting.settle(StorageUnavailable())
        del self._streams[key]

    async def _commit(self, key: StreamKey, group: list[_Waiting]) -> Exception | None:
        """Commit the group. Returns the error that stopped it, if any."""
        requests, spilled = [waiting.request for waiting in group], group[0].spilled
        failure: Exception | None = None
        answers: list[Any]
        try:
            write = partial(append, self._stores, key, requests, spilled)
            answers = list(await group[0].context.run(self._run, write))
        except Exception as stopped:  # noqa: BLE001 - whatever it is, each waiting request must hear of it
            failure, answers = stopped, [stopped] * len(group)
        else:
            self._committed(key)
        for waiting, answer in zip(group, answers, strict=True):
            waiting.settle(answer)
        return failure


class _Queue:
    """The appends to one stream that are not sent yet, in the order of their arrival."""

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.changed = asyncio.Event()

    def add(self, waiting: _Waiting) -> None:
        self.waiting.append(waiting)
        self.changed.set()

    def take_group(self) -> list[_Waiting]:
        """The longest run of ready appends that fits an item; empty if none is ready.

        Later appends pass an append whose body is still on its way to S3, unless they depend on it: both have
        the same producer or a Stream-Seq, or one closes the stream.
        """
        group: list[_Waiting] = []
        behind: list[_Waiting] = []
        size, is_full = 0, False
        for waiting in self.waiting:
            if waiting.answer.done():  # The append was cancelled, or S3 refused its body.
                continue
            body = len(waiting.request.body)
            is_full = is_full or (bool(group) and (len(group) == MAX_GROUP or size + body > INLINE_BYTES))
            if is_full or waiting.is_spilling or any(map(waiting.depends_on, behind)):
                behind.append(waiting)
            else:
                waiting.is_sent = True
                group.append(waiting)
                size += body
        self.waiting = deque(behind)
        return group


async def _turn(waiting: _Waiting, left: Left | None) -> Outcome:
    """The outcome of a waiting append. Until it is sent, the append leaves the queue when its client
    disconnects or after TURN_SECONDS. Raises as `GroupCommit.append`."""
    answer = waiting.answer
    leaving: asyncio.Future[Any] | None = None
    timer = asyncio.get_running_loop().call_later(UNWATCHED_SECONDS, waiting.move)
    try:
        await waiting.moved
        if not answer.done():
            leaving = asyncio.ensure_future(left()) if left is not None else None
            ends = (answer, leaving) if leaving else (answer,)
            time_left = TURN_SECONDS - UNWATCHED_SECONDS
            await asyncio.wait(ends, timeout=time_left, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.is_sent:
                gone = leaving is not None and leaving.done()
                waiting.settle(ClientLeft() if gone else StorageUnavailable())
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            waiting.settle(ClientLeft())
        return await answer
    except asyncio.CancelledError:
        if not answer.cancel() and not answer.cancelled():
            answer.exception()  # Marks the exception as retrieved.
        raise
    finally:
        timer.cancel()
        if leaving is not None:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

"""What is known of each call of an upstream: a stream of JSON beside the stream of its answer.

Both have the call's id as their name, in buckets of their own. A waiting request, an abort and the process
that pipes meet here: each reads what the others tell, and is woken by it as every reader is. Neither the
upstream's key nor path and query are told.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

import orjson

from tidemark.protocol.append import Outcome
from tidemark.protocol.errors import (
    AppendAfterClose,
    BucketExists,
    BucketNotFound,
    Conflict,
    SequenceRegression,
    StreamNotFound,
)
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.messages import DEFAULT, JSON, ContentType, render_body
from tidemark.protocol.offset import EARLIEST, ReadFrom
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import AppendRequest
from tidemark.service.buckets import create_bucket
from tidemark.service.create import Created, CreateRequest, create
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.stores import Stores
from tidemark.wake.follow import Process, read_or_wait

ANSWERS: Final = "proxy"
CALLS: Final = "proxy-calls"
#: How long both streams stay after they were last read.
ANSWER_TTL_SECONDS: Final = 24 * 3600
#: A call that has not said for so long that it goes on is lost.
LEASE_MS: Final = 60_000
#: The longest single wait for what others tell.
WAIT_SECONDS: Final = 20.0
ABORTED: Final = "aborted"
LOST: Final = "lost: the process that made the call has ended"

_T = TypeVar("_T")
_JSON: Final = ContentType(JSON, JSON)
#: An answer is any bytes, and is cut anywhere; its own type is told beside it.
BYTES: Final = ContentType(DEFAULT, DEFAULT)
_EXPIRY: Final = Expiry(ttl_seconds=ANSWER_TTL_SECONDS)


@dataclass(frozen=True, slots=True)
class UpstreamCall:
    """`content_type` is the answer's, once its stream is there; `refusal` is what the client gets where there
    is none; `error` says how the answer ended: empty where it is whole."""

    entry: str = ""
    subject: str | None = None
    fingerprint: str = ""
    lease_ms: int = 0
    content_type: str | None = None
    refusal: Mapping[str, Any] | None = None
    aborted: bool = False
    error: str | None = None

    @property
    def is_answered(self) -> bool:
        return self.content_type is not None or self.has_failed

    @property
    def has_failed(self) -> bool:
        return self.refusal is not None or (self.error is not None and self.content_type is None)


def answer_key(call_id: str) -> StreamKey:
    return StreamKey(ANSWERS, call_id)


def call_key(call_id: str) -> StreamKey:
    return StreamKey(CALLS, call_id)


def call_in(told: bytes) -> UpstreamCall:
    """What the words say that were told, each a JSON object; later ones win."""
    known: dict[str, Any] = {}
    for words in orjson.loads(told):
        known |= words
    return UpstreamCall(**{name: known[name] for name in UpstreamCall.__slots__ if name in known})


@dataclass(frozen=True, slots=True)
class Order:
    """A request to an upstream, as a client asked for it."""

    call_id: str
    url: str
    method: str
    headers: Sequence[tuple[str, str]] = field(repr=False)
    body: bytes = field(repr=False)


def _create(stores: Stores, key: StreamKey, request: CreateRequest) -> Created:
    """With the bucket, the first time."""
    try:
        return create(stores, key, request)
    except BucketNotFound:
        with suppress(BucketExists):
            create_bucket(stores, key.bucket)
        return create(stores, key, request)


AppendOne = Callable[[StreamKey, AppendRequest], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls, in the storage of a process. Raises what storage raises."""

    process: Process
    append: AppendOne

    async def begin(self, call_id: str, **words: Any) -> bool:
        """Whether it is new."""
        told = words | {"lease_ms": self._lease_ms()}
        request = CreateRequest(_JSON, _EXPIRY, closed=False, body=orjson.dumps(told))
        try:
            return (await self._run(_create, call_key(call_id), request)).is_new
        except Conflict:  # It has ended.
            return False

    async def load(self, call_id: str) -> UpstreamCall:
        """Raises StreamNotFound."""
        reading = await self._run(read, call_key(call_id), EARLIEST)
        return call_in(render_body(_JSON, reading.data))

    async def tell(self, call_id: str, *, close: bool = False, once: str | None = None, **words: Any) -> bool:
        """Whether it was told: not if the call has ended, nor if `once` was told before."""
        body = orjson.dumps(words) if words else b""
        request = AppendRequest(_JSON if body else None, body, close, stream_seq=once)
        try:
            await self.append(call_key(call_id), request)
        except (AppendAfterClose, SequenceRegression):
            return False
        return True

    async def take(self, call_id: str) -> bool:
        """Whether the call is now this process's. Nobody takes it twice, because an answer is paid for."""
        return await self.tell(call_id, once="taken", lease_ms=self._lease_ms())

    async def renew(self, call_id: str) -> None:
        await self.tell(call_id, lease_ms=self._lease_ms())

    async def until(
        self, call_id: str, is_enough: Callable[[UpstreamCall], bool], seconds: float
    ) -> UpstreamCall | None:
        """What is known once that is enough, or the call has ended; None after so many seconds. Raises
        StreamNotFound if the call is removed."""
        deadline, told = time.monotonic() + seconds, b""
        read_from: ReadFrom = EARLIEST
        while (left := deadline - time.monotonic()) > 0:
            key, most = call_key(call_id), min(left, WAIT_SECONDS)
            reading = await read_or_wait(self.process, key, read_from, None, most)
            told, read_from = told + reading.data, reading.page.end
            call = call_in(render_body(_JSON, told))
            if is_enough(call) or reading.page.closed:
                return call
        return None

    async def open_answer(self, call_id: str, content_type: str) -> None:
        await self._run(_create, answer_key(call_id), CreateRequest(BYTES, _EXPIRY, closed=False))
        await self.tell(call_id, content_type=content_type)

    async def end_if_lost(self, call_id: str, call: UpstreamCall) -> UpstreamCall:
        """What is known then. The process that made it finds that it has ended, if it goes on after all."""
        if (
            call.error is not None
            or call.refusal is not None
            or call.lease_ms >= self.process.stores.clock_ms()
        ):
            return call
        return replace(call, error=await self.end(call_id))

    async def end(self, call_id: str) -> str:
        """Returns how the answer ended. Its producer closes a whole one, or tells first why it is not."""
        error = LOST
        with suppress(StreamNotFound):
            if (await self._run(load_head, answer_key(call_id))).tail.closed_by:
                error = ""
        await self.tell(call_id, error=error)
        with suppress(AppendAfterClose, StreamNotFound):
            await self.append(answer_key(call_id), AppendRequest(None, b"", close=True))
        await self.tell(call_id, close=True)
        return error

    async def remove(self, call_id: str) -> None:
        """Succeeds also where there is none. Whoever pipes finds that it is gone."""
        for key in (call_key(call_id), answer_key(call_id)):
            with suppress(StreamNotFound):
                await self._run(delete, key)
            self.process.wake.hub.wake(key)

    def _lease_ms(self) -> int:
        return self.process.stores.clock_ms() + LEASE_MS

    def _run(self, operation: Callable[..., _T], *values: Any) -> Awaitable[_T]:
        return self.process.run(partial(operation, self.process.stores, *values))

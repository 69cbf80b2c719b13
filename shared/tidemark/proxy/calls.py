"""The state of each call of an upstream: a stream of JSON entries beside the stream of its answer.

The call's id names both streams, in buckets of their own. A waiting request, an abort and the process that
pipes the answer share no memory: each appends entries and reads the stream live. No entry holds the
upstream's key, or path and query of its URL.

An id is used again after a DELETE, or once its stream has expired. Each entry and each write to the answer
therefore names the incarnation of its stream, and storage refuses writes for an earlier incarnation.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

import orjson

from tidemark.outbound.request import RequestBody
from tidemark.protocol import errors
from tidemark.protocol.append import Outcome
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
#: Sliding expiry of both streams, in seconds.
ANSWER_TTL_SECONDS: Final = 24 * 3600
#: A call whose process has not renewed its lease for this time, in milliseconds, is lost.
LEASE_MS: Final = 60_000
#: The longest single wait for an entry, in seconds.
WAIT_SECONDS: Final = 20.0
ABORTED: Final = "aborted"
LOST: Final = "lost: the process that made the call has ended"

_T = TypeVar("_T")
_JSON: Final = ContentType(JSON, JSON)
#: An answer is any bytes, and may be cut anywhere. An entry of the call has the upstream's content type.
BYTES: Final = ContentType(DEFAULT, DEFAULT)
_EXPIRY: Final = Expiry(ttl_seconds=ANSWER_TTL_SECONDS)


@dataclass(frozen=True, slots=True)
class UpstreamCall:
    """The entries of a call, merged. `content_type` is the upstream's, once the answer's stream exists;
    `refusal` is the response for the client if there is no answer; `error` is the reason why the answer is
    cut, and empty if it is whole. After `has_ended` no entry follows."""

    entry: str = ""
    subject: str | None = None
    fingerprint: str = ""
    lease_ms: int = 0
    content_type: str | None = None
    refusal: Mapping[str, Any] | None = None
    aborted: bool = False
    error: str | None = None
    has_ended: bool = False

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


def parse_call(entries: bytes, *, has_ended: bool) -> UpstreamCall:
    """`entries` is a JSON array of objects; a later entry replaces the members of earlier ones."""
    known: dict[str, Any] = {}
    for entry in orjson.loads(entries):
        known |= entry
    known["has_ended"] = has_ended
    return UpstreamCall(**{name: known[name] for name in UpstreamCall.__slots__ if name in known})


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """A request to an upstream, as the client sent it. `incarnation` belongs to the call's stream."""

    call_id: str
    url: str
    method: str
    headers: Sequence[tuple[str, str]] = field(repr=False)
    body: RequestBody = field(repr=False)
    incarnation: str | None = None


def _create(stores: Stores, key: StreamKey, request: CreateRequest) -> Created:
    """Create a stream, and its bucket with the first one."""
    try:
        return create(stores, key, request)
    except errors.BucketNotFound:
        with suppress(errors.BucketExists):
            create_bucket(stores, key.bucket)
        return create(stores, key, request)


AppendOne = Callable[[StreamKey, AppendRequest], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls, in the storage of a process. Raises what storage raises."""

    process: Process
    append: AppendOne

    async def begin(self, call_id: str, **members: Any) -> str | None:
        """Returns the incarnation of the new call's stream, or None if the call exists already."""
        entry = orjson.dumps(members | {"lease_ms": self._lease_ms()})
        request = CreateRequest(_JSON, _EXPIRY, closed=False, body=entry)
        try:
            created = await self._run(_create, call_key(call_id), request)
        except errors.Conflict:  # The call has ended, so its stream is closed.
            return None
        return created.head.record.incarnation if created.is_new else None

    async def load(self, call_id: str) -> UpstreamCall:
        """Raises StreamNotFound."""
        reading = await self._run(read, call_key(call_id), EARLIEST)
        return parse_call(render_body(_JSON, reading.data), has_ended=reading.page.closed)

    async def append_entry(
        self,
        call_id: str,
        incarnation: str | None = None,
        *,
        close: bool = False,
        once: str | None = None,
        **members: Any,
    ) -> bool:
        """Returns whether the entry was appended: not if the call has ended, or if an entry has `once`
        already. Raises StreamNotFound, also if the call's stream has another `incarnation`."""
        body = orjson.dumps(members) if members else b""
        content_type = _JSON if body else None
        request = AppendRequest(content_type, body, close, stream_seq=once, incarnation=incarnation)
        try:
            await self.append(call_key(call_id), request)
        except (errors.AppendAfterClose, errors.SequenceRegression):
            return False
        return True

    async def take(self, request: UpstreamRequest) -> bool:
        """Returns whether the call is now this process's. A call is taken once, because its answer is paid
        for."""
        with suppress(errors.StreamNotFound):
            lease_ms = self._lease_ms()
            return await self.append_entry(
                request.call_id, request.incarnation, once="taken", lease_ms=lease_ms
            )
        return False

    async def renew(self, request: UpstreamRequest) -> bool:
        return await self.append_entry(request.call_id, request.incarnation, lease_ms=self._lease_ms())

    async def until(
        self,
        call_id: str,
        is_enough: Callable[[UpstreamCall], bool],
        seconds: float,
        incarnation: str | None = None,
    ) -> UpstreamCall | None:
        """Wait for entries: returns the call once `is_enough` holds or the call has ended, or None after
        `seconds`. Raises StreamNotFound if the call is removed, or has another `incarnation`."""
        deadline, entries = time.monotonic() + seconds, b""
        read_from: ReadFrom = EARLIEST
        while (left := deadline - time.monotonic()) > 0:
            key, most = call_key(call_id), min(left, WAIT_SECONDS)
            reading = await read_or_wait(self.process, key, read_from, None, most)
            if incarnation not in {None, reading.record.incarnation}:
                raise errors.StreamNotFound
            entries, read_from = entries + reading.data, reading.page.end
            call = parse_call(render_body(_JSON, entries), has_ended=reading.page.closed)
            if is_enough(call) or call.has_ended:
                return call
        return None

    async def open_answer(self, request: UpstreamRequest, content_type: str) -> str:
        """Returns the incarnation of the answer's stream. Raises StreamNotFound if the call has ended, and
        Conflict if the answer of an earlier call is there, which was read for longer than its call."""
        key, creation = answer_key(request.call_id), CreateRequest(BYTES, _EXPIRY, closed=False)
        head = (await self._run(_create, key, creation)).head
        if head.tail.offset:
            raise errors.Conflict("The stream of the answer has data of an earlier call")
        if not await self.append_entry(request.call_id, request.incarnation, content_type=content_type):
            raise errors.StreamNotFound
        return head.record.incarnation

    async def end_if_lost(self, call_id: str, call: UpstreamCall) -> UpstreamCall:
        """Ends a call whose lease is over. If its process goes on after all, storage refuses its writes."""
        if call.has_ended or call.lease_ms >= self.process.stores.clock_ms():
            return call
        return replace(call, error=await self.end(call_id, call.error), has_ended=True)

    async def end(self, call_id: str, error: str | None = None) -> str:
        """Close the answer, then the call. Returns the error: the one that its process has appended, else
        none if the answer's producer has closed it, else LOST."""
        if error is None:
            error = LOST
            with suppress(errors.StreamNotFound):
                if (await self._run(load_head, answer_key(call_id))).tail.closed_by:
                    error = ""
            await self.append_entry(call_id, error=error)
        with suppress(errors.AppendAfterClose, errors.StreamNotFound):
            await self.append(answer_key(call_id), AppendRequest(None, b"", close=True))
        await self.append_entry(call_id, close=True)
        return error

    async def remove(self, call_id: str) -> None:
        """Remove the answer, then the call, as far as they exist. A request that finds the call in between
        belongs before the removal. The process that pipes is woken, and stops."""
        for key in (answer_key(call_id), call_key(call_id)):
            with suppress(errors.StreamNotFound):
                await self._run(delete, key)
            self.process.wake.hub.wake(key)

    def _lease_ms(self) -> int:
        return self.process.stores.clock_ms() + LEASE_MS

    def _run(self, operation: Callable[..., _T], *values: Any) -> Awaitable[_T]:
        return self.process.run(partial(operation, self.process.stores, *values))

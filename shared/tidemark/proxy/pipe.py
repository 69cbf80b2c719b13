"""Pipes an upstream's answer into a stream (§8), as the stream's only producer."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

import httpcore

from tidemark.outbound.connection import NotConnected
from tidemark.protocol import errors
from tidemark.protocol import proxy as rules
from tidemark.protocol.messages import DEFAULT
from tidemark.protocol.producer import Claim
from tidemark.proxy.calls import ABORTED, BYTES, Calls, UpstreamRequest, answer_key
from tidemark.proxy.upstream import CallLimits, body_parts, call_upstream, client_refusal, find_key, header_of
from tidemark.service.append import INLINE_BYTES, AppendRequest

_T = TypeVar("_T")

#: A batch of this size is written without waiting for more, in bytes.
ANSWER_BATCH_BYTES: Final = 4 * 1024
LONGEST_ANSWER_BYTES: Final = 64 * 1024 * 1024
_RENEW_SECONDS: Final = 20.0
#: Pauses before the next try of a write that storage did not take, in seconds.
_PAUSES: Final = (0.1, 0.5, 1.0, 2.0, 4.0)
_LIMITS: Final = CallLimits()
_SERVER_ENDED: Final = "cut off: the server ended"
_SERVER_FAILED: Final = "cut off: the server failed"

_log: Final = logging.getLogger("tidemark")


async def carry_out(
    calls: Calls, request: UpstreamRequest, entries: Sequence[rules.AllowEntry], limits: CallLimits = _LIMITS
) -> None:
    """The whole life of a call, by the one process that took it. Readers find every failure as the answer's
    error. If this task is cancelled, it still ends the answer: a write under way is never abandoned, because
    nobody would know its producer's sequence number."""
    piping = _Piping(calls, request, limits, asyncio.get_running_loop().create_future())
    running = asyncio.create_task(piping.run(entries))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        piping.stop(_SERVER_ENDED)
        await running
        raise


@dataclass(slots=True)
class _Piping:
    _calls: Calls
    _request: UpstreamRequest
    _limits: CallLimits
    #: The reason to end the answer early.
    _stopped: asyncio.Future[str]
    #: The incarnation of the answer's stream, once there is one.
    _answer: str | None = None
    _is_opening: bool = False
    #: Bytes that are not written yet, and the number of those that are.
    _batch: bytearray = field(default_factory=bytearray)
    _written: int = 0
    _seq: int = 0

    def stop(self, reason: str) -> None:
        if not self._stopped.done():
            self._stopped.set_result(reason)

    async def run(self, entries: Sequence[rules.AllowEntry]) -> None:
        watching = asyncio.create_task(self.watch())
        try:
            await self.pipe_or_refuse(entries)
        except (errors.AppendAfterClose, errors.StreamNotFound):
            pass  # The call was deleted, or taken for lost.
        except Exception:  # noqa: BLE001 - readers must find any failure
            _log.exception("a call of an upstream failed")
            with suppress(errors.AppendAfterClose, errors.StreamNotFound):
                await self.finish(_SERVER_FAILED)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def watch(self) -> None:
        """Renew the lease until the call is to end early."""
        is_aborted, request = (lambda call: call.aborted), self._request
        look = partial(self._calls.until, request.call_id, is_aborted, _RENEW_SECONDS, request.incarnation)
        try:
            while (call := await retry_while_storage_fails(look)) is None:
                await retry_while_storage_fails(partial(self._calls.renew, request))
        except errors.StreamNotFound:
            self.stop(ABORTED)
        except Exception:  # noqa: BLE001 - an answer that nobody can stop is not paid for
            _log.exception("the state of a call cannot be read")
            self.stop(_SERVER_FAILED)
        else:
            self.stop(call.error or ABORTED)

    async def pipe_or_refuse(self, entries: Sequence[rules.AllowEntry]) -> None:
        """Until the answer's stream is there, a call that is stopped is cancelled; from then on it ends its
        answer."""
        working = asyncio.create_task(self.refusal(entries))
        either: set[asyncio.Future[Any]] = {working, self._stopped}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not working.done() and not self._is_opening:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await self.finish(self._stopped.result())
        elif (refusal := await working) is not None:
            await retry_while_storage_fails(partial(self.append_entry, close=True, refusal=refusal))

    async def refusal(self, entries: Sequence[rules.AllowEntry]) -> dict[str, Any] | None:
        """Pipe the answer, or return the client's response if there is none."""
        request = self._request
        try:
            url = rules.parse_upstream_url(request.url)
            entry = rules.allowing_entry(entries, url)
            if entry.linger is not None:
                self._limits = replace(self._limits, linger=entry.linger)
            key = await find_key(entry.secret) if entry.secret else ""
            headers = rules.with_key(request.headers, entry, key)
            async with call_upstream(url, request, headers, entry, limits=self._limits) as answer:
                refusal = await client_refusal(answer, rules.keys_in(headers, entry))
                if refusal is None:
                    await self.pipe(answer)
                return refusal
        except errors.ProxyError as error:
            status, code, message = error.status, error.code, error.message
        except NotConnected as failure:
            status, code, message = 502, "UPSTREAM_ERROR", f"No answer of upstream: {failure}"
        except TimeoutError:
            status, code, message = 504, "UPSTREAM_TIMEOUT", "Upstream sent no headers in time"
        return {"status": status, "code": code, "message": message}

    async def pipe(self, answer: httpcore.Response) -> None:
        content_type = header_of(answer, b"content-type") or DEFAULT
        self._is_opening = True
        open_answer = partial(self._calls.open_answer, self._request, content_type)
        self._answer = await retry_while_storage_fails(open_answer)
        await self.finish(await self.copy(answer))

    async def copy(self, answer: httpcore.Response) -> str:
        """Write the answer in batches, until it ends. Returns why it ended early, or nothing."""
        limits, body = self._limits, aiter(body_parts(answer))
        ends_at, due_at = time.monotonic() + limits.whole, math.inf
        reading = asyncio.ensure_future(anext(body, None))
        try:
            while True:
                seconds = max(0.0, min(due_at, ends_at) - time.monotonic())
                either: set[asyncio.Future[Any]] = {reading, self._stopped}
                await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if self._stopped.done():
                    return self._stopped.result()
                if reading.done():
                    if (chunk := reading.result()) is None:
                        return ""
                    if len(self._batch) + len(chunk) > INLINE_BYTES:
                        await self.write()
                    due_at = due_at if self._batch else time.monotonic() + limits.linger
                    self._batch += chunk
                    reading = asyncio.ensure_future(anext(body, None))
                if len(self._batch) >= ANSWER_BATCH_BYTES or (self._batch and time.monotonic() >= due_at):
                    await self.write()
                    due_at = math.inf
                if time.monotonic() >= ends_at or self._written > LONGEST_ANSWER_BYTES:
                    return f"cut off: longer than {limits.whole:.0f} s or {LONGEST_ANSWER_BYTES >> 20} MiB"
        except httpcore.TimeoutException:
            return f"cut off: upstream was silent for {limits.silence:.0f} s"
        except (httpcore.NetworkError, httpcore.ProtocolError) as failure:
            return f"cut off by upstream: {type(failure).__name__}"
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def write(self, *, close: bool = False) -> None:
        """Append the batch once, however often the request is sent."""
        data, self._batch = bytes(self._batch), bytearray()
        claim = Claim(self._request.call_id, 0, self._seq)
        await self.append(AppendRequest(BYTES if data else None, data, close, claim=claim))
        self._seq, self._written = self._seq + 1, self._written + len(data)

    async def finish(self, error: str) -> None:
        """An error is appended to the call before the answer is closed: a reader of the close finds it."""
        if error:
            await retry_while_storage_fails(partial(self.append_entry, error=error))
        if self._answer is not None:
            await (self.cut() if error else self.write(close=True))
        end = partial(self.append_entry, close=True, **({} if error else {"error": ""}))
        await retry_while_storage_fails(end)

    async def cut(self) -> None:
        """Close the answer as nobody's append: a write of unknown outcome may have the sequence number, and
        the close would pass for its repetition."""
        with suppress(errors.ProtocolError):
            await self.write()
        await self.append(AppendRequest(None, b"", close=True))

    async def append(self, request: AppendRequest) -> None:
        key, request = answer_key(self._request.call_id), request._replace(incarnation=self._answer)
        await retry_while_storage_fails(partial(self._calls.append, key, request))

    async def append_entry(self, *, close: bool = False, **members: Any) -> None:
        request = self._request
        await self._calls.append_entry(request.call_id, request.incarnation, close=close, **members)


async def retry_while_storage_fails(act: Callable[[], Awaitable[_T]]) -> _T:
    """Repeats an idempotent call until storage takes it, because an upstream's answer is paid for. Raises the
    last error."""
    for pause in _PAUSES:
        with suppress(errors.Busy, errors.OutcomeUnknown, errors.StorageSilent, errors.StorageUnavailable):
            return await act()
        await asyncio.sleep(pause)
    return await act()

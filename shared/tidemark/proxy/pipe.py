"""Pipes an upstream's answer into a stream (§8), as the stream's only producer."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import httpcore

from tidemark.protocol import errors
from tidemark.protocol import proxy as rules
from tidemark.protocol.messages import DEFAULT
from tidemark.protocol.producer import Claim
from tidemark.proxy.calls import ABORTED, BYTES, Calls, Order, answer_key
from tidemark.proxy.upstream import UpstreamUnreachable, answered, client_refusal, header_of, load_key
from tidemark.service.append import INLINE_BYTES, AppendRequest

_T = TypeVar("_T")

#: So much is written at once as soon as it is there.
ANSWER_BATCH_BYTES: Final = 4 * 1024
LONGEST_ANSWER_BYTES: Final = 64 * 1024 * 1024
_RENEW_SECONDS: Final = 20.0
#: The pauses after which a write is tried again that storage did not take.
_PAUSES: Final = (0.1, 0.5, 1.0, 2.0, 4.0)

_log: Final = logging.getLogger("tidemark")


@dataclass(frozen=True, slots=True)
class CallLimits:
    """In seconds: until the upstream's headers, without a byte of its body (§8.1), from the first byte of a
    batch until it is written, and in all."""

    headers: float = 60.0
    silence: float = 600.0
    linger: float = 0.05
    whole: float = 3600.0


CALL_LIMITS: Final = CallLimits()


async def carry_out(
    calls: Calls, order: Order, entries: Sequence[rules.AllowEntry], limits: CallLimits = CALL_LIMITS
) -> None:
    """The whole life of a call, by the one process that took it. Its readers are told what goes wrong."""
    piping = _Piping(calls, order.call_id, limits)
    try:
        await piping.run(order, entries)
    except (errors.AppendAfterClose, errors.StreamNotFound):
        pass  # It was deleted, or taken for lost.
    except asyncio.CancelledError:
        with suppress(Exception):
            await piping.finish("cut off: the server ended")
        raise
    except Exception:  # noqa: BLE001 - whatever it is, readers must be told
        _log.exception("a call of an upstream failed")
        await piping.finish("cut off: the server failed")


@dataclass(slots=True)
class _Piping:
    _calls: Calls
    _call_id: str
    _limits: CallLimits
    _has_answer: bool = False
    #: What is not yet written, and how much was.
    _batch: bytearray = field(default_factory=bytearray)
    _written: int = 0
    _seq: int = 0

    async def run(self, order: Order, entries: Sequence[rules.AllowEntry]) -> None:
        stopped = asyncio.create_task(self.stopped())
        try:
            refusal = await self.answer_or_refusal(order, entries, stopped)
        finally:
            stopped.cancel()
            await asyncio.gather(stopped, return_exceptions=True)
        if refusal is not None:
            await patiently(partial(self._calls.tell, self._call_id, close=True, refusal=refusal))

    async def answer_or_refusal(
        self, order: Order, entries: Sequence[rules.AllowEntry], stopped: asyncio.Task[str]
    ) -> dict[str, Any] | None:
        """Pipe the answer, or return what the client gets instead."""
        try:
            url = rules.parse_upstream_url(order.url)
            entry = rules.allowing_entry(entries, url)
            key = await asyncio.to_thread(load_key, entry.secret) if entry.secret else ""
            headers = rules.with_key(order.headers, entry, key)
            async with answered(
                url,
                order,
                headers,
                may_be_private=entry.is_exact,
                header_seconds=self._limits.headers,
                silent_seconds=self._limits.silence,
            ) as answer:
                refusal = await client_refusal(answer, rules.keys_in(headers, entry))
                if refusal is None:
                    await self.pipe(answer, stopped)
                return refusal
        except errors.ProxyError as error:
            status, code, message = error.status, error.code, error.message
        except UpstreamUnreachable as failure:
            status, code, message = 502, "UPSTREAM_ERROR", f"No answer of upstream: {failure}"
        except TimeoutError:
            status, code, message = 504, "UPSTREAM_TIMEOUT", "Upstream sent no headers in time"
        return {"status": status, "code": code, "message": message}

    async def pipe(self, answer: httpcore.Response, stopped: asyncio.Task[str]) -> None:
        content_type = header_of(answer, b"content-type") or DEFAULT
        await patiently(partial(self._calls.open_answer, self._call_id, content_type))
        self._has_answer = True
        await self.finish(await self.copy(answer, stopped))

    async def copy(self, answer: httpcore.Response, stopped: asyncio.Task[str]) -> str:
        """Write what comes, in batches, until it ends. Returns why it ended early, or nothing."""
        limits, body = self._limits, aiter(answer.aiter_stream())
        ends_at, due_at = time.monotonic() + limits.whole, math.inf
        reading = asyncio.ensure_future(anext(body, None))
        try:
            while True:
                seconds = max(0.0, min(due_at, ends_at) - time.monotonic())
                await asyncio.wait({reading, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if stopped.done():
                    return stopped.result()
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

    async def stopped(self) -> str:
        """Why the answer is to end early. Meanwhile the lease is renewed."""
        is_aborted = partial(self._calls.until, self._call_id, lambda call: call.aborted, _RENEW_SECONDS)
        while (call := await patiently(is_aborted)) is None:
            await patiently(partial(self._calls.renew, self._call_id))
        return call.error or ABORTED

    async def write(self, *, close: bool = False) -> None:
        """A batch, once, however often it is sent."""
        data, self._batch = bytes(self._batch), bytearray()
        claim = Claim(self._call_id, 0, self._seq)
        request = AppendRequest(BYTES if data else None, data, close, claim=claim)
        await patiently(partial(self._calls.append, answer_key(self._call_id), request))
        self._seq, self._written = self._seq + 1, self._written + len(data)

    async def finish(self, error: str) -> None:
        """An error is told first: whoever sees that the answer is closed finds it."""
        tell = partial(self._calls.tell, self._call_id)
        if error:
            await patiently(partial(tell, error=error))
        if self._has_answer:
            await self.write(close=True)
        await patiently(partial(tell, close=True, **({} if error else {"error": ""})))


async def patiently(act: Callable[[], Awaitable[_T]]) -> _T:
    """What may be done twice, until storage takes it: an upstream's answer is paid for."""
    for pause in _PAUSES:
        with suppress(errors.Busy, errors.OutcomeUnknown, errors.StorageSilent, errors.StorageUnavailable):
            return await act()
        await asyncio.sleep(pause)
    return await act()

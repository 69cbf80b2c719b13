"""Calls an upstream and pipes its answer into a stream (§8), as the stream's only producer."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import logging
import math
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar

import httpcore

from tidemark.aws.clients import ParameterUnavailable, load_parameter
from tidemark.protocol import errors
from tidemark.protocol import proxy as rules
from tidemark.protocol.messages import DEFAULT
from tidemark.protocol.producer import Claim
from tidemark.proxy.calls import ABORTED, BYTES, Calls, Order, answer_key
from tidemark.service.append import INLINE_BYTES, AppendRequest
from tidemark.subscriptions.webhook import MOST_ADDRESSES, resolve_host
from tidemark.subscriptions.webhook_url import check_address

_T = TypeVar("_T")

#: How long a connection may take, and one write to it.
_CONNECT_SECONDS: Final = 10.0


class UpstreamUnreachable(Exception):
    """No connection, or no answer. The message names no secret."""


class _Checked(httpcore.AsyncNetworkBackend):
    """Connects to the addresses that it has checked. TLS still asks for the name."""

    def __init__(self, *, may_be_private: bool) -> None:
        self._may_be_private = may_be_private
        self._connect = httpcore.AnyIOBackend().connect_tcp

    async def connect_tcp(
        self, host: str, port: int, *values: Any, **named: Any
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await asyncio.to_thread(resolve_host, host, port)
        except (OSError, UnicodeError):
            raise httpcore.ConnectError("the name has no address") from None
        if not self._may_be_private:
            _check_public(addresses)
        *first, last = addresses[:MOST_ADDRESSES]
        for address in first:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._connect(address, port, *values, **named)
        return await self._connect(last, port, *values, **named)


def _check_public(addresses: Iterable[str]) -> None:
    """All of them: a name with one public and one private address could lead to either. Raises ProxyError."""
    try:
        for text in addresses:
            address = ipaddress.ip_address(text)
            check_address(address)
            if address.version == 6 and address.scope_id is not None:
                raise errors.WebhookUrlRejected
    except errors.WebhookUrlRejected:
        raise rules.upstream_not_allowed(
            "Upstream-URL leads to a private address; an entry that names host and port allows it"
        ) from None


@asynccontextmanager
async def answered(
    url: rules.UpstreamUrl,
    order: Order,
    headers: Sequence[tuple[str, str]],
    *,
    may_be_private: bool,
    header_seconds: float,
    silent_seconds: float,
) -> AsyncIterator[httpcore.Response]:
    """The upstream's answer, once its headers are there; the body comes by `aiter_stream`. Raises ProxyError,
    UpstreamUnreachable, and TimeoutError after `header_seconds`."""
    timeout = {"connect": _CONNECT_SECONDS, "read": silent_seconds, "write": _CONNECT_SECONDS}
    network = _Checked(may_be_private=may_be_private)
    async with httpcore.AsyncConnectionPool(ssl_context=_tls(), network_backend=network) as pool:
        named = [("host", url.authority), ("content-length", str(len(order.body))), *headers]
        sent = httpcore.Request(
            order.method,
            httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target),
            headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in named],
            content=order.body,
            extensions={"timeout": timeout},
        )
        try:
            async with asyncio.timeout(header_seconds):
                answer = await pool.handle_async_request(sent)
        except (TimeoutError, httpcore.TimeoutException):
            raise TimeoutError from None
        except (
            httpcore.NetworkError,
            httpcore.ProtocolError,
            httpcore.UnsupportedProtocol,
            OSError,
        ) as failure:
            raise UpstreamUnreachable(type(failure).__name__) from None
        try:
            yield answer
        finally:
            await answer.aclose()


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def load_key(place: str) -> str:
    """The upstream's key: `ssm:/name`, `env:NAME` or `file:/path`. Raises UpstreamUnreachable."""
    kind, _, name = place.partition(":")
    try:
        if kind == "ssm":
            return load_parameter(name).strip()
        key = os.environ[name] if kind == "env" else Path(name).read_text()
        return key.strip().encode("ascii").decode()
    except (KeyError, OSError, ParameterUnavailable, ValueError):
        raise UpstreamUnreachable(f"the key at {place} cannot be read") from None


#: So much is written at once as soon as it is there.
ANSWER_BATCH_BYTES: Final = 4 * 1024
#: So much of an upstream's error is handed on.
_ERROR_BYTES: Final = 32 * 1024
_ERROR_SECONDS: Final = 5.0
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


def header_of(answer: httpcore.Response, name: bytes) -> str:
    """Empty where there is none. Characters beyond ASCII are left out."""
    return next(
        (value.decode("ascii", "ignore") for sent, value in answer.headers if sent.lower() == name), ""
    )


async def client_refusal(answer: httpcore.Response, keys: Iterable[str]) -> dict[str, Any] | None:
    """What the client gets for an answer without success (§4.1). So much of its body as comes at once, in
    which the upstream's keys are hidden."""
    if 200 <= answer.status < 300:
        return None
    if answer.status < 400:
        return {"status": 400, "code": "REDIRECT_NOT_ALLOWED", "message": "Proxy cannot follow redirects"}
    body = bytearray()
    with suppress(TimeoutError, httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
        async with asyncio.timeout(_ERROR_SECONDS):
            async for chunk in answer.aiter_stream():
                body += chunk
                if len(body) >= _ERROR_BYTES:
                    break
    content_type = header_of(answer, b"content-type")
    for key in keys:
        body = body.replace(key.encode("latin-1"), b"***")
    text = base64.b64encode(body[:_ERROR_BYTES]).decode()
    return {"status": 502, "upstream_status": answer.status, "content_type": content_type, "body": text}

"""Requests to an upstream, and its responses that are no success (§4.1).

Raises NotConnected, and ProxyError for an address that is not allowed.
"""

from __future__ import annotations

import asyncio
import base64
import os
import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import httpcore

from tidemark.aws.clients import ParameterUnavailable, load_parameter
from tidemark.outbound.connection import AddressRefused, Lookups, NotConnected, Timeouts, answered
from tidemark.outbound.request import Url, is_public
from tidemark.protocol import proxy as rules
from tidemark.proxy.calls import UpstreamRequest

#: Timeout of a connection, and of one write to it, in seconds.
_CONNECT_SECONDS: Final = 10.0
#: Most bytes of an upstream's error body that the client gets, and the seconds for which they are awaited.
_ERROR_BYTES: Final = 32 * 1024
_ERROR_SECONDS: Final = 5.0
#: Most bytes that come of one step, in memory: a few bytes may stand for gigabytes.
_PIECE_BYTES: Final = 64 * 1024
#: Some upstreams compress their responses although `identity` is asked for.
_CODINGS: Final = frozenset({"", "gzip", "x-gzip", "deflate"})

_PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_NAMES: Final = Lookups()
_KEYS: Final = Lookups()


@dataclass(frozen=True, slots=True)
class CallLimits:
    """In seconds: until the upstream's headers, without a byte of its body (§8.1), from the first byte of a
    batch until it is written, and in all."""

    headers: float = 60.0
    silence: float = 600.0
    linger: float = 0.05
    whole: float = 3600.0


@asynccontextmanager
async def call_upstream(
    url: Url,
    request: UpstreamRequest,
    headers: Sequence[tuple[str, str]],
    entry: rules.AllowEntry,
    *,
    limits: CallLimits,
) -> AsyncIterator[httpcore.Response]:
    """As `answered`. Raises ProxyError, NotConnected, and TimeoutError."""
    sent = [("content-length", str(len(request.body.content))), *headers]
    may_connect = (lambda _: True) if entry.is_exact else is_public
    timeouts = Timeouts(limits.headers, _CONNECT_SECONDS, limits.silence)
    answering = answered(
        url, request.method, sent, request.body, names=_NAMES, may_connect=may_connect, timeouts=timeouts
    )
    async with AsyncExitStack() as stack:
        try:
            answer = await stack.enter_async_context(answering)
        except AddressRefused:
            raise rules.upstream_not_allowed(
                "Upstream-URL leads to a private address; an entry that names host and port allows it"
            ) from None
        except NotConnected as failure:
            # A proxy would resolve the name itself, so no address could be checked.
            named = next((name for name in _PROXIES if os.environ.get(name)), "")
            hint = f". {named} is set, but the durable proxy connects directly" if named else ""
            raise NotConnected(f"{failure}{hint}") from None
        except TimeoutError:
            raise
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as failure:
            raise NotConnected(type(failure).__name__) from None
        yield answer


async def find_key(place: str) -> str:
    """As `load_key`, for which SSM or a disk may take long. Raises NotConnected."""
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            return await asyncio.wrap_future(_KEYS.ask(load_key, place))
    except OSError:
        raise NotConnected(f"the key at {place} cannot be read in time") from None


def load_key(place: str) -> str:
    """The upstream's key: `ssm:/name`, `env:NAME` or `file:/path`. Raises NotConnected."""
    kind, _, name = place.partition(":")
    try:
        if kind == "ssm":
            return load_parameter(name).strip()
        key = os.environ[name] if kind == "env" else Path(name).read_text()
        return key.strip().encode("ascii").decode()
    except (KeyError, OSError, ParameterUnavailable, ValueError):
        raise NotConnected(f"the key at {place} cannot be read") from None


def header_of(answer: httpcore.Response, name: bytes) -> str:
    """Empty where there is none. Characters beyond ASCII are left out."""
    return next(
        (value.decode("ascii", "ignore") for sent, value in answer.headers if sent.lower() == name), ""
    )


def _coding_of(answer: httpcore.Response) -> str:
    """Empty for none."""
    values = [
        value.decode("latin-1") for name, value in answer.headers if name.lower() == b"content-encoding"
    ]
    codings = [each.strip().lower() for each in ",".join(values).split(",")]
    return ", ".join(each for each in codings if each not in {"", "identity"})


def _unreadable(answer: httpcore.Response) -> str:
    """The error about a coding that is not decoded; empty where `body_parts` gives the body."""
    coding = _coding_of(answer)
    if coding in _CODINGS:
        return ""
    return f"Upstream answered in the coding {coding!r:.80}: only identity, gzip and deflate can be decoded"


async def body_parts(answer: httpcore.Response) -> AsyncIterator[bytes]:
    """The body, in pieces of a bounded size; nothing of an unreadable one. Raises RemoteProtocolError for one
    that breaks its coding."""
    coding, decoder = _coding_of(answer), cast("Any", None)
    if _unreadable(answer):
        return
    try:
        async for data in answer.aiter_stream():
            if not coding:
                yield data
                continue
            left, piece = data, b""
            while left or (len(piece) == _PIECE_BYTES and not decoder.eof):
                if decoder is None or decoder.eof:  # A body of gzip may have several members.
                    decoder = _decoder(coding, left)
                piece = decoder.decompress(left, _PIECE_BYTES)
                left = decoder.unused_data or decoder.unconsumed_tail
                yield piece
    except zlib.error:
        raise httpcore.RemoteProtocolError("the body breaks its coding") from None
    if decoder and not decoder.eof:
        raise httpcore.RemoteProtocolError("the body ends inside its coding")


def _decoder(coding: str, data: bytes) -> Any:
    """A body of deflate begins with the byte of zlib (RFC 1950 §2.2), or is raw, as from some servers."""
    if coding != "deflate":
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    is_raw = data[0] & 0x0F != zlib.DEFLATED
    return zlib.decompressobj(-zlib.MAX_WBITS if is_raw else zlib.MAX_WBITS)


async def client_refusal(answer: httpcore.Response, keys: Iterable[str]) -> dict[str, Any] | None:
    """The error that the client gets in place of the answer (§4.1), or None. The upstream's keys are hidden
    in it. An error's body is awaited for some seconds only."""
    unread = _unreadable(answer)
    if 200 <= answer.status < 300:
        return {"status": 502, "code": "UPSTREAM_ERROR", "message": unread} if unread else None
    if answer.status < 400:
        return {"status": 400, "code": "REDIRECT_NOT_ALLOWED", "message": "Proxy cannot follow redirects"}
    hidden, body = [key.encode("latin-1") for key in keys], bytearray(unread.encode())
    most = _ERROR_BYTES + max(map(len, hidden), default=0)
    with suppress(TimeoutError, httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
        async with asyncio.timeout(_ERROR_SECONDS):
            async for chunk in body_parts(answer):
                body += chunk
                if len(body) >= most:
                    break
    return {
        "status": 502,
        "upstream_status": answer.status,
        "content_type": "text/plain" if unread else header_of(answer, b"content-type"),
        "headers": rules.handed_on(answer.status, answer.headers, hidden),
        "body": base64.b64encode(rules.without_keys(bytes(body), hidden)[:_ERROR_BYTES]).decode(),
    }

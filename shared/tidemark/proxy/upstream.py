"""Requests to an upstream, and its responses that are no success (§4.1).

Raises NotConnected, and ProxyError for an address that is not allowed.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpcore

from tidemark.aws.clients import ParameterUnavailable, load_parameter
from tidemark.outbound.connection import AddressRefused, NotConnected, answered
from tidemark.outbound.lookups import Lookups
from tidemark.outbound.url import Url, is_public
from tidemark.protocol import proxy as rules
from tidemark.proxy.calls import UpstreamRequest
from tidemark.proxy.codings import decoded, unreadable

#: Timeout of a connection, and of one write to it, in seconds.
_CONNECT_SECONDS: Final = 10.0
#: Most bytes of an upstream's error body that the client gets, and the seconds for which they are awaited.
_ERROR_BYTES: Final = 32 * 1024
_ERROR_SECONDS: Final = 5.0

_PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_NAMES: Final = Lookups()
_KEYS: Final = Lookups()


@asynccontextmanager
async def call_upstream(
    url: Url,
    request: UpstreamRequest,
    headers: Sequence[tuple[str, str]],
    *,
    may_be_private: bool,
    header_seconds: float,
    silent_seconds: float,
) -> AsyncIterator[httpcore.Response]:
    """As `answered`. Raises ProxyError, NotConnected, and TimeoutError after `header_seconds`."""
    answering = answered(
        url,
        request.method,
        [("content-length", str(len(request.body.content))), *headers],
        request.body,
        names=_NAMES,
        may_connect=lambda address: may_be_private or is_public(address),
        header_seconds=header_seconds,
        connect_seconds=_CONNECT_SECONDS,
        silent_seconds=silent_seconds,
    )
    async with AsyncExitStack() as stack:
        try:
            answer = await stack.enter_async_context(answering)
        except AddressRefused:
            raise rules.upstream_not_allowed(
                "Upstream-URL leads to a private address; an entry that names host and port allows it"
            ) from None
        except NotConnected as failure:
            raise NotConnected(f"{failure}{_passed_by()}") from None
        except TimeoutError:
            raise
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as failure:
            raise NotConnected(type(failure).__name__) from None
        yield answer


def _passed_by() -> str:
    """Names a proxy of the environment: it would resolve the name itself, so no address could be checked."""
    names = [name for name in _PROXIES if os.environ.get(name)]
    return f". {names[0]} is set, but the durable proxy connects directly" if names else ""


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


async def client_refusal(answer: httpcore.Response, keys: Iterable[str]) -> dict[str, Any] | None:
    """The error that the client gets in place of the answer (§4.1), or None. The upstream's keys are hidden
    in it. An error's body is awaited for some seconds only."""
    unread = unreadable(answer)
    if 200 <= answer.status < 300:
        return {"status": 502, "code": "UPSTREAM_ERROR", "message": unread} if unread else None
    if answer.status < 400:
        return {"status": 400, "code": "REDIRECT_NOT_ALLOWED", "message": "Proxy cannot follow redirects"}
    hidden, body = [key.encode("latin-1") for key in keys], bytearray(unread.encode())
    most = _ERROR_BYTES + max(map(len, hidden), default=0)
    with suppress(TimeoutError, httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
        async with asyncio.timeout(_ERROR_SECONDS):
            async for chunk in decoded(answer):
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

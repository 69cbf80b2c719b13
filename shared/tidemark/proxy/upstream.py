"""Requests to an upstream, and its responses that are no success (§4.1).

Raises UpstreamUnreachable, and ProxyError for an address that is not allowed.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import os
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import httpcore

from tidemark.aws.clients import ParameterUnavailable, load_parameter
from tidemark.protocol import errors
from tidemark.protocol import proxy as rules
from tidemark.proxy.calls import UpstreamRequest
from tidemark.proxy.codings import decoded, unreadable
from tidemark.subscriptions.lookups import Lookups, TooManyLookups
from tidemark.subscriptions.webhook import MOST_ADDRESSES, resolve_host
from tidemark.subscriptions.webhook_url import check_address

#: Timeout of a connection, and of one write to it, in seconds.
_CONNECT_SECONDS: Final = 10.0
#: Most bytes of an upstream's error body that the client gets, and the seconds for which they are awaited.
_ERROR_BYTES: Final = 32 * 1024
_ERROR_SECONDS: Final = 5.0


_PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_T = TypeVar("_T")
_NAMES: Final = Lookups()
_KEYS: Final = Lookups()


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
            addresses = await _within_time(_NAMES.ask(resolve_host, host, port))
        except TimeoutError:
            raise UpstreamUnreachable(f"{host} does not resolve in {_CONNECT_SECONDS:.0f} s") from None
        except TooManyLookups as refused:
            raise UpstreamUnreachable(str(refused)) from None
        except (OSError, UnicodeError):
            raise UpstreamUnreachable(f"{host} has no address") from None
        if not self._may_be_private:
            _check_public(addresses)
        *first, last = addresses[:MOST_ADDRESSES]
        for address in first:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._connect(address, port, *values, **named)
        return await self._connect(last, port, *values, **named)


async def _within_time(lookup: Future[_T]) -> _T:
    async with asyncio.timeout(_CONNECT_SECONDS):
        return await asyncio.wrap_future(lookup)


def _check_public(addresses: Iterable[str]) -> None:
    """Every address must be public, because a name with a public and a private address could lead to either.
    Raises ProxyError."""
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
    request: UpstreamRequest,
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
        named = [("host", url.authority), ("content-length", str(len(request.body.content))), *headers]
        sent = httpcore.Request(
            request.method,
            httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target),
            headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in named],
            content=request.body,
            extensions={"timeout": timeout},
        )
        try:
            async with asyncio.timeout(header_seconds):
                answer = await pool.handle_async_request(sent)
        except (UpstreamUnreachable, httpcore.ConnectError, httpcore.ConnectTimeout) as failure:
            reason = str(failure) if isinstance(failure, UpstreamUnreachable) else type(failure).__name__
            raise UpstreamUnreachable(reason + _passed_by()) from None
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


def _passed_by() -> str:
    """Names a proxy of the environment: it would resolve the name itself, so no address could be checked."""
    names = [name for name in _PROXIES if os.environ.get(name)]
    return f". {names[0]} is set, but the durable proxy connects directly" if names else ""


async def find_key(place: str) -> str:
    """As `load_key`, for which SSM or a disk may take long. Raises UpstreamUnreachable."""
    try:
        return await _within_time(_KEYS.ask(load_key, place))
    except OSError:
        raise UpstreamUnreachable(f"the key at {place} cannot be read in time") from None


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

"""Calls a webhook, and reads a bounded response. One deadline covers the whole call, with the DNS lookup."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from tidemark.outbound.lookups import Lookups
from tidemark.outbound.url import IpAddress, Url, is_public
from tidemark.protocol.errors import WebhookUrlRejected
from tidemark.subscriptions.configuration import NOT_PUBLIC
from tidemark.subscriptions.state import DeliveryFailure

#: Most bytes read of a response.
MAX_RESPONSE_BYTES: Final = 64 * 1024

_NAMES: Final = Lookups()


class DeliveryFailed(Exception):
    """The webhook was not reached, or did not answer. The message contains no secret."""

    def __init__(self, message: str, failure: DeliveryFailure = DeliveryFailure.REFUSED) -> None:
        super().__init__(message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


def call_webhook(
    url: Url, body: bytes, headers: Mapping[str, str], timeout_seconds: float
) -> WebhookResponse:
    """Raises DeliveryFailed, and WebhookUrlRejected if an address is not public."""
    return asyncio.run(_call(url, body, headers, timeout_seconds))


async def _call(url: Url, body: bytes, headers: Mapping[str, str], seconds: float) -> WebhookResponse:
    import httpcore  # Most processes call no webhook.

    from tidemark.outbound.connection import AddressRefused, NotConnected, answered

    fixed = {"Content-Length": str(len(body)), "Connection": "close", "Accept": "application/json"}
    sent, received, is_sent = {**headers, **fixed, "Accept-Encoding": "identity"}, bytearray(), False

    async def content() -> AsyncIterator[bytes]:
        nonlocal is_sent
        is_sent = True
        yield body

    answering = answered(
        url,
        "POST",
        sent.items(),
        content(),
        names=_NAMES,
        may_connect=_is_local if url.scheme == "http" else is_public,
        header_seconds=seconds,
        connect_seconds=seconds,
        silent_seconds=seconds,
    )
    try:
        async with asyncio.timeout(seconds), answering as answer:
            async for part in answer.aiter_stream():
                received += part
                if len(received) >= MAX_RESPONSE_BYTES:
                    break
            return WebhookResponse(answer.status, bytes(received[:MAX_RESPONSE_BYTES]))
    except AddressRefused:
        is_local = url.scheme == "http"
        message = "A local webhook must lead to this machine" if is_local else NOT_PUBLIC
        raise WebhookUrlRejected(message) from None
    except NotConnected as failure:
        raise DeliveryFailed(f"{url.authority}: {failure}") from failure
    except (TimeoutError, httpcore.TimeoutException) as failure:
        if is_sent:
            silent = DeliveryFailure.SILENT
            raise DeliveryFailed(f"{url.authority}: no answer in time", silent) from failure
        raise DeliveryFailed(f"{url.authority}: TimeoutError") from failure
    except (OSError, httpcore.NetworkError, httpcore.ProtocolError) as failure:
        dropped = DeliveryFailure.DROPPED
        raise DeliveryFailed(f"{url.authority}: {type(failure).__name__}", dropped) from failure


def _is_local(address: IpAddress) -> bool:
    return address.is_loopback

"""Calls a webhook, and reads a bounded response. The deadline includes the DNS lookup."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidemark.outbound.request import RequestBody, Url, is_public
from tidemark.protocol.errors import WebhookUrlRejected
from tidemark.subscriptions.configuration import NOT_PUBLIC
from tidemark.subscriptions.state import DeliveryFailure

#: Most bytes read of a response.
MAX_RESPONSE_BYTES: Final = 64 * 1024


class DeliveryFailed(Exception):
    """The webhook was not reached, or did not answer. The message contains no secret."""

    def __init__(self, message: str, failure: DeliveryFailure = DeliveryFailure.REFUSED) -> None:
        super().__init__(message)
        self.failure = failure


class WebhookResponse(NamedTuple):
    status: int
    body: bytes


def call_webhook(
    url: Url, body: bytes, headers: Mapping[str, str], timeout_seconds: float
) -> WebhookResponse:
    """Raises DeliveryFailed, and WebhookUrlRejected if an address is not public."""
    return asyncio.run(_call(url, body, headers, timeout_seconds))


async def _call(url: Url, content: bytes, headers: Mapping[str, str], seconds: float) -> WebhookResponse:
    import httpcore  # Most processes call no webhook.
    from anyio.lowlevel import checkpoint

    from tidemark.outbound.connection import WEBHOOK_NAMES, AddressRefused, NotConnected, Timeouts, answered

    body, is_local, received = RequestBody(content), url.scheme == "http", bytearray()
    fixed = {"Content-Length": str(len(content)), "Connection": "close", "Accept-Encoding": "identity"}
    answering = answered(
        url,
        "POST",
        {**headers, **fixed, "Accept": "application/json"}.items(),
        body,
        names=WEBHOOK_NAMES,
        may_connect=(lambda address: address.is_loopback) if is_local else is_public,
        timeouts=Timeouts(seconds, seconds, seconds),
    )
    await checkpoint()  # Loads the modules that a connection needs, before the deadline counts.
    try:
        async with asyncio.timeout(seconds), answering as answer:
            async for part in answer.aiter_stream():
                received += part
                if len(received) >= MAX_RESPONSE_BYTES:
                    break
            return WebhookResponse(answer.status, bytes(received[:MAX_RESPONSE_BYTES]))
    except AddressRefused:
        message = "A local webhook must lead to this machine" if is_local else NOT_PUBLIC
        raise WebhookUrlRejected(message) from None
    except NotConnected as error:
        failure, reason = DeliveryFailure.REFUSED, str(error)
    except (TimeoutError, httpcore.TimeoutException):
        is_connected = not body.content  # The body is taken once the connection is there.
        failure = DeliveryFailure.SILENT if is_connected else DeliveryFailure.REFUSED
        reason = "no answer in time" if is_connected else "no connection in time"
    except (OSError, httpcore.NetworkError, httpcore.ProtocolError) as error:
        failure, reason = DeliveryFailure.DROPPED, type(error).__name__
    raise DeliveryFailed(f"{url.authority}: {reason}", failure)

"""A call of an upstream as an asynchronous invocation of a function by itself: it outlives the request.

The payload has the upstream's key, and Lambda keeps it until the invocation has begun. A body that does not
fit lies in S3 meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import orjson

from tidemark.aws.clients import make_client
from tidemark.protocol.append import Outcome
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.proxy import AllowEntry
from tidemark.protocol.stream_key import StreamKey
from tidemark.proxy.calls import Calls, Order
from tidemark.proxy.pipe import CallLimits, carry_out
from tidemark.service.append import AppendRequest, append
from tidemark.service.stores import Stores
from tidemark.wake.follow import Process, SingleFlight, Wake

#: Of an asynchronous invocation's payload, which in base64 and with its headers fits 256 KB.
_INLINE_BYTES: Final = 128 * 1024
#: A batch waits longer than on a server, because each one is billed; a function ends after 900 seconds.
LIMITS: Final = CallLimits(linger=0.2, whole=840.0)
_FOLDER: Final = "proxy/"

_T = TypeVar("_T")


def invoke(function_name: str, stores: Stores, order: Order) -> None:
    """Begin the call. It is never tried again, because an upstream's answer is paid for."""
    told = {"call_id": order.call_id, "url": order.url, "method": order.method, "headers": order.headers}
    if len(order.body) > _INLINE_BYTES:
        stores.blobs.put(_FOLDER + order.call_id, order.body)
    else:
        told["body"] = base64.b64encode(order.body).decode()
    client = make_client("lambda", retries={"total_max_attempts": 1})
    client.invoke(FunctionName=function_name, InvocationType="Event", Payload=orjson.dumps({"order": told}))


async def invoked(
    event: Mapping[str, Any], stores: Stores, wake: Wake, entries: Sequence[AllowEntry]
) -> None:
    """What `invoke` began; or, as the destination of failures, what is left of one that crashed."""
    calls = _on_threads(stores, wake)
    if "requestPayload" in event:
        await calls.end(event["requestPayload"]["order"]["call_id"])
        return
    told = dict(event["order"])
    body = told.pop("body", None)
    order = Order(**told, body=base64.b64decode(body or ""))
    if body is None:
        name = _FOLDER + order.call_id
        order = replace(order, body=await calls.process.run(lambda: stores.blobs.get(name)))
        await calls.process.run(lambda: stores.blobs.delete(name))
    await carry_out(calls, order, entries, LIMITS)


def _on_threads(stores: Stores, wake: Wake) -> Calls:
    """The upstream is read while storage is asked."""

    async def run(call: Callable[[], _T], /) -> _T:
        return await asyncio.to_thread(call)

    async def append_alone(key: StreamKey, request: AppendRequest) -> Outcome:
        outcome = (await run(lambda: append(stores, key, [request])))[0]
        if isinstance(outcome, ProtocolError):
            raise outcome
        return outcome

    return Calls(Process(stores, run, SingleFlight(run).share, wake), append_alone)

"""The functions of the durable proxy: `proxy` handles requests, and `pipe` calls upstreams.

A call of an upstream is an asynchronous invocation of `pipe`, which outlives the request. The payload has the
upstream's key, and Lambda keeps the payload until the invocation begins. A body that does not fit into the
payload is in S3 meanwhile. If the invocation crashes, the next reader treats the call as lost when its lease
has ended.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from tidemark.cold_start import garbage_collection_paused

with garbage_collection_paused():
    import orjson
    from botocore.exceptions import BotoCoreError, ClientError

    from tidemark.aws.clients import make_client
    from tidemark.http.app import create_data_path
    from tidemark.http.backend import lambda_backend
    from tidemark.http.lambda_adapter import adapted
    from tidemark.log.schema import PLAIN_EPOCH
    from tidemark.observability.invocation import thread_loop
    from tidemark.observability.report import reporting
    from tidemark.outbound.request import RequestBody
    from tidemark.protocol.append import Outcome
    from tidemark.protocol.errors import ProtocolError, RateLimitExceeded
    from tidemark.protocol.proxy import parse_allowed
    from tidemark.protocol.stream_key import StreamKey
    from tidemark.proxy.calls import Calls, UpstreamRequest
    from tidemark.proxy.pipe import carry_out
    from tidemark.proxy.upstream import CallLimits
    from tidemark.service.append import AppendRequest, append
    from tidemark.service.stores import connect
    from tidemark.settings import Settings
    from tidemark.wake.follow import Process, SingleFlight

_T = TypeVar("_T")

#: Most bytes of a body in the payload of an asynchronous invocation, which has 1 MB with base64 and headers.
INLINE_BYTES: Final = 640 * 1024
#: `linger` is longer than on a server, because each batch is billed. `whole` is below Lambda's 900 seconds.
LIMITS: Final = CallLimits(linger=0.2, whole=840.0)
_FOLDER: Final = "proxy/"
_settings: Final = Settings.from_environment(os.environ)
_settings.authorization.check_not_open()
_entries: Final = parse_allowed(_settings.proxy_allow)
_stores: Final = connect(_settings)
_pipe: Final = os.environ.get("PIPE_FUNCTION") or os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "")


async def invoke_pipe(request: UpstreamRequest) -> None:
    """Begin the call, without a retry, because the upstream's responses cost money. Raises
    RateLimitExceeded."""
    members = ("call_id", "url", "method", "headers", "incarnation")
    payload = {name: getattr(request, name) for name in members}
    if len(request.body.content) > INLINE_BYTES:
        _stores.blobs.put(_FOLDER + request.call_id, request.body.content)
    else:
        payload["body"] = base64.b64encode(request.body.content).decode()
    client = make_client("lambda", retries={"total_max_attempts": 1})
    try:
        client.invoke(FunctionName=_pipe, InvocationType="Event", Payload=orjson.dumps({"order": payload}))
    except (BotoCoreError, ClientError) as failure:
        if "body" not in payload:
            _stores.blobs.delete(_FOLDER + request.call_id)
        raise RateLimitExceeded(1, "Lambda accepts no more concurrent calls of upstreams") from failure


_backend = replace(lambda_backend(_stores, _settings), start=invoke_pipe)
_app = create_data_path(_backend, partial(_stores.check_format, PLAIN_EPOCH))
_respond = reporting("proxy", _settings, adapted(_app.respond))


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    if "http" in event.get("requestContext", {}):
        return _respond(event, context)
    thread_loop().run_until_complete(call(event["order"]))
    return {}


async def call(payload: Mapping[str, Any]) -> None:
    """Carry out the call of `invoke_pipe`. Lambda may deliver it twice."""
    calls = Calls(Process(_stores, _run, SingleFlight(_run).share, _backend.wake), _append)
    request = UpstreamRequest(**{**payload, "body": RequestBody(base64.b64decode(payload.get("body", "")))})
    if not await calls.take(request):
        return
    if "body" not in payload:
        name = _FOLDER + request.call_id
        request.body.content = await _run(lambda: _stores.blobs.get(name))
        await _run(lambda: _stores.blobs.delete(name))
    await carry_out(calls, request, _entries, LIMITS)


async def _run(call: Callable[[], _T], /) -> _T:
    """Run the call on a thread, so that the upstream is read meanwhile."""
    return await asyncio.to_thread(call)


async def _append(key: StreamKey, request: AppendRequest) -> Outcome:
    outcome = (await _run(lambda: append(_stores, key, [request])))[0]
    if isinstance(outcome, ProtocolError):
        raise outcome
    return outcome

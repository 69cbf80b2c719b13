"""The `proxy` function: requests of the durable proxy, and the calls that it invokes itself for."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Any

from tidemark.cold_start import garbage_collection_paused

with garbage_collection_paused():
    from tidemark.http.app import create_data_path
    from tidemark.http.backend import one_at_a_time
    from tidemark.http.lambda_adapter import adapted
    from tidemark.log.schema import PLAIN_EPOCH
    from tidemark.observability.invocation import thread_loop
    from tidemark.observability.report import reporting
    from tidemark.protocol.proxy import parse_allowed
    from tidemark.proxy.calls import Order
    from tidemark.proxy.invocation import invoke, invoked
    from tidemark.service.stores import connect
    from tidemark.settings import Settings

_settings = Settings.from_environment(os.environ)
_settings.authorization.check_not_open()
_entries = parse_allowed(_settings.proxy_allow)
_stores = connect(_settings)
_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]


async def _start(order: Order) -> None:
    invoke(_name, _stores, order)


_backend = replace(one_at_a_time(_stores, _settings), start=_start)
_app = create_data_path(_backend, partial(_stores.check_format, PLAIN_EPOCH))
_respond = reporting("proxy", _settings, adapted(_app))


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    if "requestContext" in event and "http" in event["requestContext"]:
        return _respond(event, context)
    thread_loop().run_until_complete(invoked(event, _stores, _backend.wake, _entries))
    return {}

"""An HTTP API's address: `<api>.execute-api.localhost` resolves on few machines, so a stack gets a port of
its own on loopback. The path, the query and the Host header reach the emulator as the client sent them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ministack.services import apigateway


def addressed(app: Any, stacks: Mapping[int, str]) -> Any:
    """The emulator's application; on the port of a stack, that stack's HTTP API."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        stack = stacks.get(scope["server"][1]) if scope["type"] == "http" and scope.get("server") else None
        if stack is not None:
            api_id = api_of(stack)
            prefix = f"/_aws/execute-api/{api_id or 'none'}/$default"
            scope = dict(scope, path=prefix + scope["path"], raw_path=prefix.encode() + scope["raw_path"])
        await app(scope, receive, send)

    return serve


def api_of(stack: str) -> str | None:
    """SAM names the API after its stack, in the title of the document that `api_body` imports."""
    for api in list(apigateway._apis._data.values()):
        if api.get("name") == stack:
            return str(api["apiId"])
    return None

"""What the edge does to the requests of a deployment (`edge/route.js`): event streams go to the function that
streams its responses, everything else to the HTTP API. `EDGE=false` leaves it out, as the template's `Edge`.

Lambda Web Adapter, in front of that function, passes requests and responses on unchanged, so here its
application is called itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qs

from tidemark.local.environments import load_handler
from tidemark.local.gateway import Gateway, Receive, Scope, Send
from tidemark.local.template import Function

#: What `run.sh` has its server serve.
_FILE: Final = "app.py"
_ATTRIBUTE: Final = "app"

Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def load_application(function: Function) -> Application:
    """Raises FunctionNotLoaded."""
    served = replace(function, module=function.module.with_name(_FILE), attribute=_ATTRIBUTE)
    application: Any = load_handler(served)
    return application  # type: ignore[no-any-return]


def is_event_stream(method: str, query: str) -> bool:
    """As `edge/route.js` decides it."""
    return method == "GET" and parse_qs(query, keep_blank_values=True).get("live") == ["sse"]


class Edge:
    """In front of both. The streaming application has a hub of its own: the trigger wakes its readers."""

    def __init__(self, api: Gateway, live: Application) -> None:
        self._api = api
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            is_live = is_event_stream(scope["method"], scope["query_string"].decode("latin-1"))
        else:
            # Unlike the functions behind the API, the streaming one is told of the end, and cleans up.
            is_live = scope["type"] == "lifespan"
        await (self._live if is_live else self._api)(scope, receive, send)

    def close(self) -> None:
        self._api.close()

"""Lambda's call of a function: event loop, the Web Adapter's header, and the path written by the edge."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from starlette.types import Scope

Handler = Callable[[dict[str, Any], Any], dict[str, Any]]
"""A handler of events: takes the event and Lambda's context object, and returns the response."""


def thread_loop() -> asyncio.AbstractEventLoop:
    """Return the thread's own event loop. Its invocations share it, one after another."""
    try:
        return asyncio.get_event_loop()
    except RuntimeError:
        asyncio.set_event_loop(asyncio.new_event_loop())
        return asyncio.get_event_loop()


#: The version of the edge's headers. Increment it with each change that functions of an earlier release would
#: misread; they answer 503 until they are replaced. The first releases sent none.
EDGE_VERSION_HEADER: Final = "X-Tidemark-Edge-Version"
EDGE_VERSION: Final = "2"
_EDGE_ESCAPE: Final = re.compile("~(?:~([0-7][0-9a-f]))?")


def read_edge_path(path: str) -> str:
    """Return the path as the client sent it. `edge/route.js` writes a percent sign as "~", and other
    characters that an HTTP API might change as "~~2b". Different paths stay different."""
    return _EDGE_ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else "%", path)


def event_path(event: Mapping[str, Any]) -> str:
    """Return the decoded path of an HTTP event, for logs: without the query, which may contain a token."""
    path = str(event.get("rawPath") or "").partition("?")[0]
    version = (event.get("headers") or {}).get(EDGE_VERSION_HEADER.lower())
    return unquote(read_edge_path(path)) if version == EDGE_VERSION else path


def lambda_context(scope: Scope) -> dict[str, Any]:
    """Return Lambda's context, which the Web Adapter sends in a header. Empty if the request is not an
    invocation, such as the adapter's health check."""
    header = dict(scope.get("headers") or ()).get(b"x-amzn-lambda-context", b"{}")
    try:
        context = json.loads(header)
    except (ValueError, RecursionError):
        return {}
    return context if isinstance(context, dict) else {}

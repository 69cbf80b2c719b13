"""How Lambda calls a function, the loop that it runs on, the Web Adapter's headers about an invocation, and
the path that the edge writes."""

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
"""A handler of events: it takes the event and Lambda's context object, and returns the response."""


def thread_loop() -> asyncio.AbstractEventLoop:
    """The thread's own event loop. Its invocations share it, one after another."""
    try:
        return asyncio.get_event_loop()
    except RuntimeError:
        asyncio.set_event_loop(asyncio.new_event_loop())
        return asyncio.get_event_loop()


#: The version of what the edge tells. It is incremented with each change that functions of an earlier release
#: would misread; they answer 503 until they are replaced. The first releases sent none.
EDGE_VERSION_HEADER: Final = "X-Tidemark-Edge-Version"
EDGE_VERSION: Final = "2"
_EDGE_ESCAPE: Final = re.compile("~(?:~([0-7][0-9a-f]))?")


def read_edge_path(path: str) -> str:
    """The path as the client sent it. `edge/route.js` writes a percent sign as "~" and other characters that
    an HTTP API might change as "~~2b"; no two paths are written alike."""
    return _EDGE_ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else "%", path)


def event_path(event: Mapping[str, Any]) -> str:
    """The decoded path of an HTTP event, for logs: without the query, where a token may be."""
    path = str(event.get("rawPath") or "").partition("?")[0]
    version = (event.get("headers") or {}).get(EDGE_VERSION_HEADER.lower())
    return unquote(read_edge_path(path)) if version == EDGE_VERSION else path


def lambda_context(scope: Scope) -> dict[str, Any]:
    """Lambda's context, as the Web Adapter sends it in a header. Empty where the request is no
    invocation, such as the adapter's own health check."""
    header = dict(scope.get("headers") or ()).get(b"x-amzn-lambda-context", b"{}")
    try:
        context = json.loads(header)
    except (ValueError, RecursionError):
        return {}
    return context if isinstance(context, dict) else {}

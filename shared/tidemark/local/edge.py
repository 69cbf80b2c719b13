"""The edge, as it treats the requests of a deployment (`edge/route.js`): event streams go to the function
that streams its responses, everything else to the HTTP API, and both are told the request as it was sent.
`EDGE=false` leaves it out, as the template's `Edge`.

Lambda Web Adapter, in front of that function, passes requests and responses on unchanged, so here its
application is called itself.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qs, quote

from tidemark.http.security import origin_secret
from tidemark.local.environments import load_handler
from tidemark.local.gateway import Gateway
from tidemark.local.template import Function
from tidemark.server.asgi import Application, Receive, Scope, Send

#: The file and the name of the application that `run.sh` serves.
_FILE: Final = "app.py"
_ATTRIBUTE: Final = "app"
_SECRET_HEADER: Final = origin_secret.HEADER.lower().encode()
_PATH_HEADER: Final = origin_secret.PATH_HEADER.lower().encode()
_TYPE_HEADER: Final = origin_secret.TYPE_HEADER.lower().encode()
_HOST_HEADER: Final = origin_secret.HOST_HEADER.lower().encode()
_VERSION_HEADER: Final = origin_secret.VERSION_HEADER.lower().encode()
_BARE_PERCENT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
#: JavaScript's `encodeURI` leaves these as they are, beside letters and digits; and the percent sign.
_NOT_ENCODED: Final = "%;/?:@&=+$,#-_.!~*'()"


def load_application(function: Function) -> Application:
    """Raises FunctionNotLoaded."""
    served = replace(function, module=function.module.with_name(_FILE), attribute=_ATTRIBUTE)
    application: Any = load_handler(served)
    return application  # type: ignore[no-any-return]


def is_event_stream(method: str, query: str) -> bool:
    """As `edge/route.js` decides it."""
    return method == "GET" and parse_qs(query, keep_blank_values=True).get("live") == ["sse"]


def header_path(raw_path: bytes) -> str:
    """The path as the edge tells it to the origins."""
    return quote(raw_path, safe=_NOT_ENCODED)


def api_path(raw_path: bytes) -> bytes:
    """The path as the edge sends it to the HTTP API, which decodes it twice."""
    return _BARE_PERCENT.sub(b"%25", raw_path).replace(b"%", b"%25")


def for_api(scope: Scope) -> Scope:
    """The body goes to the HTTP API as bytes, so that it travels in base64."""
    types = [value for name, value in scope["headers"] if name == b"content-type"]
    headers = [pair for pair in scope["headers"] if pair[0] != b"content-type"]
    if types:
        headers += [(_TYPE_HEADER, b",".join(types)), (b"content-type", b"application/octet-stream")]
    return {**scope, "headers": headers, "raw_path": api_path(scope["raw_path"])}


class Edge:
    """In front of both. The streaming application has a hub of its own: the trigger wakes its readers.

    `secret` is the origin secret, which goes with every request; empty if it is not known here.
    """

    def __init__(self, api: Gateway, live: Application, secret: str) -> None:
        self._api = api
        self._live = live
        self._secret = secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            is_live = is_event_stream(scope["method"], scope["query_string"].decode("latin-1"))
            scope = self._told(scope)
            if not is_live:
                scope = for_api(scope)
        else:
            # Unlike the functions behind the API, the streaming one is told of the end, and cleans up.
            is_live = scope["type"] == "lifespan"
        await (self._live if is_live else self._api)(scope, receive, send)

    def _told(self, scope: Scope) -> Scope:
        """The request with what the edge says of it, in place of what the client said under these names."""
        host = next((value for name, value in scope["headers"] if name == b"host"), b"localhost")
        said = {
            _VERSION_HEADER: origin_secret.VERSION.encode(),
            _PATH_HEADER: header_path(scope["raw_path"]).encode(),
            _HOST_HEADER: host,
        }
        if self._secret:
            said[_SECRET_HEADER] = self._secret.encode()
        own = said.keys() | {_TYPE_HEADER}
        sent = [(name, value) for name, value in scope["headers"] if name not in own]
        return {**scope, "headers": sent + list(said.items())}

    def close(self) -> None:
        self._api.close()

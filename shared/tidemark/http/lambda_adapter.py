"""Mangum, which makes an ASGI request of an HTTP API's event, without its faults.

It splits `Host` at each colon, takes `X-Forwarded-Port` for a number and every header for text that
can be encoded (0.22): a client that sends anything else would get a 500, and the log a stack trace.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

from mangum import Mangum
from mangum.handlers import HTTPGateway

from tidemark.observability.invocation import Handler

#: No content type has a line end in it, so every body travels as base64: a third more, whatever it
#: holds. As text, a page of quotes or of Cyrillic would be escaped beyond Lambda's 6 MB.
_NONE_AS_TEXT: Final = ["\n"]


class HttpApi(HTTPGateway):
    """Payload format 2.0, of an HTTP API or a function URL."""

    @cached_property
    def scope(self) -> Any:
        """The request as it came, whatever is in its headers. A half of a character, which no bytes
        stand for, becomes a question mark. Mangum asks for it twice in each request."""
        event = self.event
        request = event["requestContext"]
        headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
        if event.get("cookies"):
            headers["cookie"] = "; ".join(event["cookies"])
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "http_version": "1.1",
            "method": request["http"]["method"],
            "scheme": "http" if headers.get("x-forwarded-proto") == "http" else "https",
            "path": unquote(request["http"]["path"]) or "/",
            "raw_path": None,
            "root_path": "",
            "query_string": event.get("rawQueryString", "").encode(errors="replace"),
            "headers": [
                [name.encode(errors="replace"), str(value).encode(errors="replace")]
                for name, value in headers.items()
            ],
            "server": (request.get("domainName", "localhost"), 443),
            "client": (request["http"].get("sourceIp"), 0),
            "aws.event": event,
            "aws.context": self.context,
        }


def adapted(app: Any) -> Handler:
    """The ASGI application as a function's handler of HTTP events."""
    handler: Handler = Mangum(app, lifespan="off", text_mime_types=_NONE_AS_TEXT, custom_handlers=[HttpApi])
    return handler

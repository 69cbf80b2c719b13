"""The page at `/`."""

from __future__ import annotations

from html import escape
from typing import Final

from tidemark import __version__

FACTS: Final = {
    "service": "Tidemark",
    "version": __version__,
    "what": "Durable Streams: append-only streams over HTTP",
    "streams": "/v1/stream/{path}",
    "console": "/v1/console",
    "openapi": "/v1/openapi.json",
    "api": "/v1/docs",
    "health": "/v1/health",
    "docs": "https://github.com/durable-streams/durable-streams/blob/main/PROTOCOL.md",
}
_LINKS: Final = ("console", "api", "openapi", "health", "docs")


def render_html() -> str:
    """The same facts for a person who opens the server's address in a browser."""
    links = "".join(f'<li><a href="{escape(FACTS[name])}">{name}</a></li>' for name in _LINKS)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Tidemark</title>"
        '<body style="font-family:sans-serif;max-width:40em;margin:3em auto">'
        f"<h1>Tidemark {escape(__version__)}</h1><p>{escape(FACTS['what'])}.</p>"
        f"<p>Streams live under <code>{escape(FACTS['streams'])}</code>:</p>"
        "<pre>URL=<i>the address of this page</i>\n"
        "curl -X PUT -H 'Content-Type: text/plain' -d hello \"${URL%/}/v1/stream/first\"\n"
        'curl "${URL%/}/v1/stream/first?offset=-1"</pre>'
        f"<ul>{links}</ul></html>"
    )

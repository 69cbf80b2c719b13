"""AWS's endpoints speak TLS; the emulator speaks plain HTTP on loopback. The bucket's policy refuses what is
not encrypted, and the emulator enforces that: a request to it counts as encrypted, as behind a TLS proxy."""

from __future__ import annotations

from typing import Any

HEADER = (b"x-forwarded-proto", b"https")


def encrypted(app: Any, port: int) -> Any:
    """The emulator's application; requests to its own port arrive as if by TLS, those to a stack as sent."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope.get("server") and scope["server"][1] == port:
            scope = dict(scope, headers=[*scope["headers"], HEADER])
        await app(scope, receive, send)

    return serve

"""Tidemark: the serverless home of the Durable Streams protocol.

The names of the client (`from tidemark import Stream`) are imported when they are first used: the server does
without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark._version import __version__ as __version__

if TYPE_CHECKING:
    from tidemark.client import AsyncStream as AsyncStream
    from tidemark.client import Stream as Stream
    from tidemark.client import StreamError as StreamError


def __getattr__(name: str) -> Any:
    """PEP 562."""
    if name not in {"AsyncStream", "Stream", "StreamError"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import tidemark.client

    return getattr(tidemark.client, name)

"""Tidemark: the serverless home of the Durable Streams protocol.

The names of the client (`from tidemark import Stream, StreamClosed`) are imported when they are first used:
the server does without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.protocol import __version__ as __version__

if TYPE_CHECKING:
    from tidemark.client import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """PEP 562. The client's names are classes, and one function."""
    if not name[0].isupper() and name != "proxy_transport":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import tidemark.client

    return getattr(tidemark.client, name)

"""Tidemark: the serverless home of the Durable Streams protocol.

The names of the client (`from tidemark import Stream, StreamClosed`) are imported when they are first used:
the server does without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.protocol import __version__ as __version__

if TYPE_CHECKING:
    from tidemark.client import *  # noqa: F403
else:  # A checker would take any name for one of these.

    def __getattr__(name: str) -> Any:
        """PEP 562. The client's names are classes, and one function; `__all__` lists them."""
        if not name[0].isupper() and name not in {"proxy_transport", "__all__"}:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import tidemark.client

        return __dir__() if name == "__all__" else getattr(tidemark.client, name)

    def __dir__() -> list[str]:
        import tidemark.client

        names = (name for name in vars(tidemark.client) if name[0].isupper())
        return [*sorted(names), "__version__", "proxy_transport"]

"""The version, in a file of its own: the client needs it, and `tidemark` needs the client."""

from __future__ import annotations

__version__ = "0.1.0"

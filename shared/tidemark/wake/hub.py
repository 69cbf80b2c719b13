"""The hub: one per process, where waiting requests listen for their stream.

A ring is a hint to look again, never data: it may come late, twice, or for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.protocol.stream_key import StreamKey


class Hub:
    """Used from one event loop."""

    def __init__(self) -> None:
        self._bells: dict[StreamKey, set[asyncio.Event]] = {}

    @contextmanager
    def listen(self, key: StreamKey) -> Iterator[asyncio.Event]:
        """A bell for this stream. Listen first, read then: what is written after the read
        rings, what was written before it is in it."""
        bell = asyncio.Event()
        bells = self._bells.setdefault(key, set())
        bells.add(bell)
        try:
            yield bell
        finally:
            bells.discard(bell)
            if not bells:
                self._bells.pop(key, None)

    def ring(self, key: StreamKey) -> None:
        for bell in self._bells.get(key, ()):
            bell.set()

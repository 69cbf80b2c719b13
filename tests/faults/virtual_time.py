"""An event loop whose time is a number: it jumps to the next timer as soon as there is nothing else to do."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Jumping(selectors.DefaultSelector):
    """Never waits for long: what would have been waited is added to the time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        assert timeout is not None, "nothing will ever happen again"
        self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

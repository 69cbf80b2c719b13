"""When a process looks for garbage: not while it starts, and seldom later."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: New objects after which Python looks for garbage among them. A page of small messages is tens of thousands,
#: none of them garbage: at Python's own 700 to 2,000 that search was a sixth of a read.
_NEW_OBJECTS: Final = 50_000


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pauses garbage collection during the imports of a function. They leave no garbage, and looking for it
    takes a twentieth of a cold start."""
    gc.disable()
    try:
        yield
        spare_what_is_loaded()
    finally:
        gc.enable()


def spare_what_is_loaded() -> None:
    """Exempt all objects loaded so far from garbage collection: they live as long as the process."""
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 10, 10)

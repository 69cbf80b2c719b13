"""Garbage collection of a process: none during its start, and rarely later."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: New objects after which Python runs a collection. A page of small messages has tens of thousands, none of
#: which is garbage: with Python's default of 700 to 2,000, collection took a sixth of a read.
_NEW_OBJECTS: Final = 50_000


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection during imports, which leave no garbage: it takes a 20th of a cold start."""
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

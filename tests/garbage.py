"""Large bodies that are left to the garbage collector, which counts objects and no bytes."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Bytes of a large body; what else a request makes is smaller.
LARGE: Final = 16 * 1024


@contextmanager
def uncollected() -> Iterator[list[str]]:
    """Yields a list. At the end it names what holds large bodies in reference cycles that arose within."""
    owners: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield owners
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        owners += [
            f"{type(each).__qualname__} {each!r:.100}"
            for each in gc.garbage
            for held in gc.get_referents(each)
            if isinstance(held, bytes | bytearray | memoryview | str) and len(held) > LARGE
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()

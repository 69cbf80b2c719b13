"""The start of a process or of a task of Spark: without garbage collection, which is rare later, and without
reading Spark's zip files."""

from __future__ import annotations

import gc
import sys
import zipimport
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Final

#: New objects after which Python runs a collection. A page of small messages has tens of thousands, none of
#: which is garbage: with Python's default of 700 to 2,000, collection took a sixth of a read.
_NEW_OBJECTS: Final = 50_000
#: Spark's own archives, which do not change while a process runs.
_ARCHIVES: Final = ("pyspark.zip", "py4j-", "spark-core_")


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


def forget_archives() -> None:
    """Drop the finders of Spark's archives, so that a task of PySpark does not read the archives again. A
    later import makes a finder without a read.

    PySpark calls `importlib.invalidate_caches` when a task starts. Python 3.11 then reads the directory of
    each zip file on the module path, once for each package: 60 ms of CPU for each task, since the jar of
    Spark's core has 5,000 entries. Later versions of Python read a directory only for a lookup.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            archive = PurePath(finder.archive).name
            if archive.startswith(_ARCHIVES):
                del sys.path_importer_cache[path]

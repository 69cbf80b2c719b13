"""Keeps tasks from reading the zip files on PySpark's module path again.

PySpark calls `importlib.invalidate_caches` when a task starts. Python 3.11 then reads the directory of each
imported zip file again, once for each package. PySpark is a zip file, and the jar of Spark's core, with 5,000
entries, is on the module path too: 60 ms of CPU for each task. Later versions of Python read a directory only
for a lookup.
"""

from __future__ import annotations

import sys
import zipimport
from pathlib import PurePath
from typing import Final

#: Spark's own archives, which do not change while a process runs.
_ARCHIVES: Final = ("pyspark.zip", "py4j-", "spark-core_")


def forget_archives() -> None:
    """Drop the finders of Spark's archives. A later import makes a finder again without reading the
    archive."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            archive = PurePath(finder.archive).name
            if archive.startswith(_ARCHIVES):
                del sys.path_importer_cache[path]

"""The Spark data source `tidemark`: reads streams in bulk, and writes them exactly once.

    from tidemark.spark import register

    register(spark)
    spark.read.format("tidemark").option("subscribe", "chat").load()

Only modules in this package import pyspark or pyarrow.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from pathlib import Path
from typing import Any


def register(spark: Any) -> None:
    """Register `format("tidemark")` with a session. Warns if Spark starts its workers with another Python,
    which may not have this package."""
    from tidemark.spark.source import TidemarkSource

    spark.dataSource.register(TidemarkSource)
    # Over Spark Connect only the server knows the workers' Python.
    context = getattr(spark, "sparkContext", None)
    if context is not None and not _is_this_python(context.pythonExec):
        warnings.warn(
            f"tidemark: Spark starts its workers with {context.pythonExec}, not with {sys.executable}. If"
            " tidemark is not installed there, every query fails: set PYSPARK_PYTHON to the right one before"
            " the session starts",
            stacklevel=2,
        )


def _is_this_python(command: str) -> bool:
    """Compare directories: in a virtual environment `python` and `python3` are links to one Python
    outside."""
    found = shutil.which(command)
    return found is not None and Path(found).parent.resolve() == Path(sys.executable).parent.resolve()

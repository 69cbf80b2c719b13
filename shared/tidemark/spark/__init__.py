"""The Spark data source `tidemark`: streams read in bulk, and written exactly once.

    from tidemark.spark import register

    register(spark)
    spark.read.format("tidemark").option("subscribe", "chat").load()

Everything that imports pyspark or pyarrow is below this package and nowhere else.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from pathlib import Path
from typing import Any


def register(spark: Any) -> None:
    """Make `format("tidemark")` known to a session. Warns where Spark starts its workers with another Python
    than this one, which may not have this package."""
    from tidemark.spark.source import TidemarkSource

    spark.dataSource.register(TidemarkSource)
    # Over Spark Connect the server alone knows.
    context = getattr(spark, "sparkContext", None)
    if context is not None and not _is_this_python(context.pythonExec):
        warnings.warn(
            f"tidemark: Spark starts its workers with {context.pythonExec}, not with {sys.executable}. If"
            " tidemark is not installed there, every query fails: set PYSPARK_PYTHON to the right one before"
            " the session starts",
            stacklevel=2,
        )


def _is_this_python(command: str) -> bool:
    """By the directory: in an environment `python` and `python3` are one, and lead to one outside of it."""
    found = shutil.which(command)
    return found is not None and Path(found).parent.resolve() == Path(sys.executable).parent.resolve()

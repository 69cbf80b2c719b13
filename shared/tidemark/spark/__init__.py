"""The Spark data source `tidemark`: streams read in bulk, and written exactly once.

    from tidemark.spark import register

    register(spark)
    spark.read.format("tidemark").option("subscribe", "chat").load()

Everything that imports pyspark, pyarrow or msgspec is below this package and nowhere else.
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Make `format("tidemark")` known to a session, with what this version of Spark offers."""
    from tidemark.spark.source import source_for

    spark.dataSource.register(source_for(spark))

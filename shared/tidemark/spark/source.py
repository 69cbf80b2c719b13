"""`format("tidemark")`: what Spark asks for first, and which of our readers it gets."""

from __future__ import annotations

import re
from typing import Any

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from tidemark.spark.batch import BatchReader, PushdownBatchReader
from tidemark.spark.columns import SCHEMA
from tidemark.spark.options import parse_read_options
from tidemark.spark.stream import StreamReader

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def spark_version() -> tuple[int, int]:
    major, minor = re.findall(r"\d+", pyspark.__version__)[:2]
    return int(major), int(minor)


class TidemarkSource(DataSource):
    """One class for reads and writes. Options are checked where they first arrive."""

    @classmethod
    def name(cls) -> str:
        return "tidemark"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - it has one schema
        return BatchReader(parse_read_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        options = parse_read_options(self.options, streaming=True)
        if spark_version() >= (4, 2):
            from tidemark.spark.admission import AdmittedStreamReader

            return AdmittedStreamReader(options)
        return StreamReader(options)


class PushdownTidemarkSource(TidemarkSource):
    """Registered where Spark pushes filters down to Python sources."""

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return PushdownBatchReader(parse_read_options(self.options, streaming=False))


def source_for(spark: Any) -> type[TidemarkSource]:
    if spark_version() >= (4, 1) and spark.conf.get(PUSHDOWN, "false").lower() == "true":
        return PushdownTidemarkSource
    return TidemarkSource

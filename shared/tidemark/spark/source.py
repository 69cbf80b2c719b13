"""`format("tidemark")`: Spark's entry point, which creates the reader or writer."""

from __future__ import annotations

import dataclasses
import re

import pyspark
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from tidemark.cold_start import forget_archives
from tidemark.spark.options.read import (
    COLUMNS,
    NO_TIMES,
    ReadOptions,
    columns_of,
    parse_read_options,
    render_schema,
)
from tidemark.spark.queries.readers import AdmittedStreamReader, BatchReader, StreamReader


def spark_version() -> tuple[int, int]:
    major, minor = re.findall(r"\d+", pyspark.__version__)[:2]
    return int(major), int(minor)


class TidemarkSource(datasource.DataSource):
    """Creates readers and writers, and checks their options."""

    @classmethod
    def name(cls) -> str:
        return "tidemark"

    def schema(self) -> str:
        """Return the default columns, or the columns of the option `columns`. The reader reports invalid
        options."""
        forget_archives()
        return render_schema(columns_of(self.options))

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        return BatchReader(self.read_options(schema, streaming=False))

    def read_options(self, schema: StructType, *, streaming: bool) -> ReadOptions:
        """Parse the options, with the columns of `schema`. If the user calls `.schema(…)`, `schema` has the
        user's columns, which have the effect of the option `columns`. Raises InvalidOptions."""
        forget_archives()
        wanted = {field.name: field.dataType.simpleString().upper() for field in schema.fields}
        strange = [f"{name} {kind}" for name, kind in wanted.items() if COLUMNS.get(name) != kind]
        what = f"schema: there is no column {', '.join(strange)}; columns: {render_schema(tuple(COLUMNS))}"
        faults = [what] if strange else []
        if "columns" not in self.options and "timestamp" in wanted.keys() - columns_of(self.options):
            faults.append(f"schema: {NO_TIMES}")
        options = parse_read_options(self.options, streaming=streaming, faults=faults)
        return dataclasses.replace(options, columns=tuple(wanted))

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:
        options = self.read_options(schema, streaming=True)
        return AdmittedStreamReader(options) if spark_version() >= (4, 2) else StreamReader(options)

    # Imported only for a write: each query, and each batch of a streaming query, starts a process that
    # imports this module.
    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        from tidemark.spark.writer.writers import BatchWriter, plan_write

        forget_archives()
        return BatchWriter(plan_write(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:
        from tidemark.spark.writer.writers import StreamWriter, plan_write

        return StreamWriter(plan_write(self.options, schema, overwrite=overwrite, streaming=True))

"""The streaming sink on Spark 4.1 and newer, which hands on Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from tidemark.spark.writer.writers import StreamWriter


class ArrowStreamWriter(StreamWriter, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write.stage(self._write.pieces_of_batches(iterator))

"""What Spark and one library take by themselves for a read or a write: nothing of ours can be faster.

A source hands Spark the same batch of Arrow again and again. It fetches nothing; where `work` says so, the
bytes that such a batch comes from go through the library that a reader gives them to. A sink drops the rows
that Spark hands to it, or parses them first, as a write of JSON must.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Final

import msgspec
import orjson
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from benchmarks.spark_standin import ROW_BYTES, STORED, row
from tidemark.log.pack_format import BLOCK_BYTES, PackWriter, fast_zlib, read_index
from tidemark.protocol.offset import render_offset
from tidemark.spark.options.read import DEFAULT_COLUMNS, parse_columns, render_schema
from tidemark.spark.readers.columns import BATCH_ROWS, make_batch

#: By the option `work`.
FLOORS: Final = {
    "": "Python source of ready-made batches",
    "split": "ready-made batches, and as much JSON split by msgspec",
    "inflate": "ready-made batches, and as much inflated by ISA-L",
}


class Floor(DataSource):
    @classmethod
    def name(cls) -> str:
        return "floor"

    def schema(self) -> str:
        return render_schema(parse_columns(self.options.get("columns", ",".join(DEFAULT_COLUMNS))))

    def reader(self, schema: Any) -> DataSourceReader:
        return Source(int(self.options["rows"]), tuple(schema.fieldNames()), self.options.get("work", ""))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002, FBT001 - Spark's
        return Sink(parses=self.options.get("work") == "parse")


class Source(DataSourceReader):
    def __init__(self, rows: int, columns: tuple[str, ...], work: str) -> None:
        self._rows = rows
        self._columns = columns
        self._work = work

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002 - both are the same
        count = min(BATCH_ROWS, self._rows // 2)
        batch, work = _made_ready(self._columns, count), _WORK[self._work](count)
        for _ in range(self._rows // 2 // count):
            work()
            yield batch


# Made once in a worker, which Spark uses again: the first round of the benchmark does not count.
@cache
def _made_ready(columns: tuple[str, ...], count: int) -> pa.RecordBatch:
    names = {"bucket": "v1", "stream": "bench", "content_type": "application/json", "incarnation": "i"}
    constants = names | {"position": 0, "timestamp": datetime.now(UTC)}
    offsets = pa.array([render_offset(number * ROW_BYTES) for number in range(count)])
    arrays = {
        "value": pa.array(map(row, range(count)), pa.binary()),
        "offset": offsets,
        "end_offset": offsets,
    }
    return make_batch(columns, count, constants, arrays)


@cache
def _splitting(count: int) -> Callable[[], object]:
    body = b"[" + b",".join(map(row, range(count))) + b"]"
    return partial(msgspec.json.Decoder(list[msgspec.Raw]).decode, body)


@cache
def _inflating(count: int) -> Callable[[], object]:
    """The blocks of a pack whose batches have one row each."""
    writer = PackWriter(0, BLOCK_BYTES)
    for value in map(row, range(count)):
        writer.add(value + b",", (STORED,), (), 0)
    pack, _ = writer.finish()
    entries = read_index(pack).blocks
    blocks = [pack[entry.first_byte : entry.first_byte + entry.stored_bytes] for entry in entries]
    inflate = fast_zlib().decompress
    return lambda: [inflate(block, -zlib.MAX_WBITS, 2 * BLOCK_BYTES) for block in blocks]


_WORK: Final[Mapping[str, Callable[[int], Callable[[], object]]]] = {
    "": lambda _: lambda: None,
    "split": _splitting,
    "inflate": _inflating,
}


class Sink(DataSourceArrowWriter):
    def __init__(self, *, parses: bool) -> None:
        self._parses = parses

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            if self._parses:
                deque(map(orjson.loads, batch.column(0).cast(pa.binary()).to_pylist()), maxlen=0)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

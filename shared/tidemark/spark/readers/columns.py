"""The columns of a read, and how large an Arrow batch of them may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.protocol.offset import WIDTH
from tidemark.spark.options.read import COLUMNS

_TIME: Final = pa.timestamp("us", tz="UTC")
_ARROW: Final = {
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "TIMESTAMP": _TIME,
}
ARROW_SCHEMA: Final = pa.schema([(name, _ARROW[kind]) for name, kind in COLUMNS.items()])

#: A batch is handed on at this many rows or bytes: a task's memory does not grow with the stream.
BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 * 1024 * 1024


def make_batch(
    columns: Sequence[str], rows: int, constants: Mapping[str, Any], arrays: Mapping[str, pa.Array]
) -> pa.RecordBatch:
    """The columns that are wanted, of `arrays` or the same in every row; null where neither has one."""
    schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
    found = [
        arrays[field.name]
        if field.name in arrays
        else pa.repeat(pa.scalar(constants.get(field.name), field.type), rows)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(found, schema=schema)


def offset_column(places: Any) -> pa.Array:
    """Offsets as text, as `render_offset` makes them one by one."""
    return pc.utf8_lpad(pa.array(places, pa.int64()).cast(pa.string()), WIDTH, "0")


def time_column(times_ms: Any) -> pa.Array:
    """Times in milliseconds since 1970, as the column `timestamp` has them."""
    return pc.multiply(pa.array(times_ms, pa.int64()), 1000).cast(_TIME)


def join_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: small ones are put together up to the size of one. Those of a quarter
    of that are handed on as they are, because to put them together is to copy them."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        is_large = batch.num_rows >= BATCH_ROWS // 4 or batch.nbytes >= BATCH_BYTES // 4
        if held and (is_large or rows >= BATCH_ROWS or size >= BATCH_BYTES):
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, rows, size = [], 0, 0
        if is_large:
            yield batch
        else:
            held.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()

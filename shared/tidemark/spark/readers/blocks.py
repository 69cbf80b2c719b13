"""The rows of a whole block of a pack, column by column: no message is an object of Python's."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.protocol.offset import WIDTH
from tidemark.spark.readers.items import PackBlock


def block_arrays(columns: Sequence[str], block: PackBlock, separator_bytes: int) -> dict[str, pa.Array]:
    """What is not the same in every row, the value always. `separator_bytes` at the end of each message are
    left out of it."""
    lengths, messages = block.columns.lengths, len(block.columns.lengths)
    # Where messages begin and end, counted from the block's start; Arrow's own form of that is the same.
    edges = pc.cumulative_sum(_over(array("I", (0,)) + lengths, pa.uint32()).cast(pa.int32()))
    buffers = [None, edges.buffers()[1], pa.py_buffer(block.columns.data)]
    values = pa.Array.from_buffers(pa.binary(), messages, buffers)
    arrays = {"value": pc.binary_slice(values, 0, -separator_bytes) if separator_bytes else values}
    if "offset" in columns or "end_offset" in columns:
        # `render_offset`, a column at a time.
        places = pc.add(edges.cast(pa.int64()), block.start)
        rendered = pc.utf8_lpad(places.cast(pa.string()), WIDTH, "0")
        arrays |= {"offset": rendered[:-1], "end_offset": rendered[1:]}
    if "timestamp" in columns:
        times = block.columns.times_ms
        if len(times) != messages:
            times = array("q", block.times_ms)
        micros = pc.multiply(_over(times, pa.int64()), 1000)
        arrays["timestamp"] = micros.cast(pa.timestamp("us", tz="UTC"))
    return arrays


def _over(column: array[int], kind: pa.DataType) -> pa.Array:
    """The same numbers, not copied."""
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])

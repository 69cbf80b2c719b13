"""The rows of runs of messages, column by column: messages do not become Python objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.spark.readers.columns import offset_column, time_column
from tidemark.spark.readers.items import MessageRun, Producer, producers_by_end

_PRODUCER_COLUMNS: Final = frozenset({"producer_id", "producer_epoch", "producer_seq"})


def run_arrays(
    columns: Sequence[str], runs: Sequence[MessageRun], separator_bytes: int, low: int, high: int
) -> dict[str, pa.Array]:
    """The columns that differ between rows, and always the value, for the messages of consecutive runs that
    begin in [low, high). The value leaves out `separator_bytes` at the end of each message."""
    edges = np.zeros(sum(len(run.lengths) for run in runs) + 1, np.int32)
    np.cumsum(np.concatenate([run.lengths for run in runs]), out=edges[1:])
    places = edges + np.int64(runs[0].start)
    first, last = (int(place) for place in np.searchsorted(places[:-1], (low, high)))
    places = places[first : last + 1]
    # The bounds of messages, counted from the first run's start; Arrow's offsets have the same form.
    data = b"".join(piece for run in runs for piece in run.data)
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(data)]
    values = pa.Array.from_buffers(pa.binary(), last - first, buffers, offset=first)
    arrays = {"value": pc.binary_slice(values, 0, -separator_bytes) if separator_bytes else values}
    if "offset" in columns or "end_offset" in columns:
        rendered = offset_column(places)
        arrays |= {"offset": rendered[:-1], "end_offset": rendered[1:]}
    if "timestamp" in columns:
        times = np.concatenate([np.repeat(run.times_ms, run.batches) for run in runs])[first:last]
        arrays["timestamp"] = time_column(times)
    producing = [item for run in runs for item in run.producing]
    if producing and not _PRODUCER_COLUMNS.isdisjoint(columns):
        known = {end: each for item in producing for end, each in producers_by_end(item).items()}
        arrays |= producer_arrays(columns, [known.get(end) for end in places[1:].tolist()])
    return arrays


def producer_arrays(columns: Sequence[str], producers: Sequence[Producer | None]) -> dict[str, pa.Array]:
    """The producer of the append that ends with each message. Empty if no producer is known."""
    if _PRODUCER_COLUMNS.isdisjoint(columns) or not any(producers):
        return {}
    rows = [(each.producer_id, each.epoch, each.seq) if each else (None, None, None) for each in producers]
    ids, epochs, seqs = zip(*rows, strict=True)
    return {
        "producer_id": pa.array(ids, pa.string()),
        "producer_epoch": pa.array(epochs, pa.int64()),
        "producer_seq": pa.array(seqs, pa.int64()),
    }

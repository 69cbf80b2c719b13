"""The columns of a read, and how large an Arrow batch of them may be."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

SCHEMA: Final = (
    "bucket STRING, stream STRING, offset STRING, end_offset STRING, position INT, value BINARY, "
    "content_type STRING, timestamp TIMESTAMP, producer_id STRING, producer_epoch BIGINT, producer_seq BIGINT"
)
ARROW_SCHEMA: Final = pa.schema(
    [
        ("bucket", pa.string()),
        ("stream", pa.string()),
        ("offset", pa.string()),
        ("end_offset", pa.string()),
        ("position", pa.int32()),
        ("value", pa.binary()),
        ("content_type", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("producer_id", pa.string()),
        ("producer_epoch", pa.int64()),
        ("producer_seq", pa.int64()),
    ]
)

#: A batch is handed on at this many rows or bytes: what a task holds does not grow with the stream.
BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 * 1024 * 1024


def make_batch(
    stream_columns: tuple[str, str, str],
    *,
    offsets: pa.Array,
    end_offsets: pa.Array,
    positions: pa.Array,
    values: pa.Array,
    timestamps: pa.Array,
    producers: tuple[pa.Array, pa.Array, pa.Array] | None = None,
) -> pa.RecordBatch:
    """`stream_columns` are bucket, stream and content type, the same for every row."""
    rows = len(values)
    bucket, stream, content_type = (pa.repeat(pa.scalar(text, pa.string()), rows) for text in stream_columns)
    ids, epochs, seqs = producers or (
        pa.nulls(rows, pa.string()),
        pa.nulls(rows, pa.int64()),
        pa.nulls(rows, pa.int64()),
    )
    return pa.RecordBatch.from_arrays(
        [
            bucket,
            stream,
            offsets,
            end_offsets,
            positions,
            values,
            content_type,
            timestamps,
            ids,
            epochs,
            seqs,
        ],
        schema=ARROW_SCHEMA,
    )

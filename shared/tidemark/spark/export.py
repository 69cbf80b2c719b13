"""A point-in-time export of the table to S3, as the same rows that the data source gives.

An export is gzipped JSON lines, `{"Item": {…}}`, in no order. Reading it costs the table
nothing, and costs less than queries from about the size on at which everything is wanted.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson
import pyarrow as pa

from tidemark.log.schema import decode_log_pk, decode_stream, is_log_pk
from tidemark.protocol.stream_key import StreamKey
from tidemark.spark.chain import Rows
from tidemark.spark.columns import SCHEMA
from tidemark.spark.items import Item, item_end, item_start
from tidemark.spark.options import Origin
from tidemark.spark.origin import Part
from tidemark.spark.storage import connect_blobs

_ALL: Final = ("0" * 16, "9" * 16)


def read_export(spark: Any, path: str, origin: Origin) -> Any:
    """Every message of every stream that exists in the export. Two passes over its lines: one
    for the streams, which are few, and one for their batches."""
    lines = spark.read.text(path)
    streams = lines.where(lines.value.contains('"stream/')).rdd.map(lambda row: row.value)
    content_types = dict(filter(None, streams.map(_stream_of).collect()))
    known = spark.sparkContext.broadcast(content_types)
    batches = lines.where(lines.value.contains('"log/'))
    return batches.mapInArrow(_rows_of(origin, known), SCHEMA)


def _stream_of(line: str) -> tuple[str, tuple[str, str]] | None:
    """Its log's incarnation, its name and content type."""
    item = orjson.loads(line)["Item"]
    if not (item["pk"]["S"].startswith("bucket/") and item["sk"]["S"].startswith("stream/")):
        return None
    record = decode_stream(item)
    return record.incarnation, (record.key.stream_id, record.content_type.value)


def _rows_of(origin: Origin, known: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blobs = connect_blobs(origin)
        for batch in batches:
            for line in batch.column(0).to_pylist():
                item = orjson.loads(line)["Item"]
                found = _log_of(item, known.value)
                if found is not None:
                    yield _rows(item, *found, blobs)

    return rows


def _log_of(item: Item, known: dict[str, tuple[str, str]]) -> tuple[StreamKey, str] | None:
    """Whose batch it is; None for one without data, or of a stream that does not exist."""
    if not is_log_pk(item["pk"]["S"]) or item_end(item) == item_start(item):
        return None
    key, incarnation = decode_log_pk(item["pk"]["S"])
    return (key, known[incarnation][1]) if incarnation in known else None


def _rows(item: Item, key: StreamKey, content_type: str, blobs: Any) -> pa.RecordBatch:
    data = a2b_base64(item["b"]["B"]) if "b" in item else blobs.get(item["s"]["S"])
    gathered = Rows(key.bucket, Part(key.stream_id, content_type, "", *_ALL))
    gathered.add(item, data)
    return gathered.take()

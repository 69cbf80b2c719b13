"""A point-in-time export of the table to S3, as the same rows that the data source gives.

An export is gzipped JSON lines, `{"Item": {…}}`, in no order. Reading it costs the table
nothing, and costs less than queries from about the size on at which everything is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import orjson
import pyarrow as pa

from tidemark.log.schema import decode_log_pk, decode_stream, is_log_pk
from tidemark.protocol.stream_key import StreamKey
from tidemark.spark.clients.storage import connect_blobs
from tidemark.spark.options.connection import ConnectionOptions
from tidemark.spark.readers.columns import SCHEMA
from tidemark.spark.readers.dynamodb import Rows
from tidemark.spark.readers.items import BatchItem, Text
from tidemark.spark.readers.port import StreamPartition

_ALL: Final = ("0" * 16, "9" * 16)


class _Keyed(msgspec.Struct):
    pk: Text


class _KeyLine(msgspec.Struct):
    Item: _Keyed


class _BatchLine(msgspec.Struct):
    Item: BatchItem


_keys = msgspec.json.Decoder(_KeyLine)
_batches = msgspec.json.Decoder(_BatchLine)


def read_export(spark: Any, path: str, connection: ConnectionOptions) -> Any:
    """Every message of every stream that exists in the export. Two passes over its lines: one
    for the streams, which are few, and one for their batches."""
    lines = spark.read.text(path)
    streams = lines.where(lines.value.contains('"stream/')).rdd.map(lambda row: row.value)
    content_types = dict(filter(None, streams.map(_stream_of).collect()))
    known = spark.sparkContext.broadcast(content_types)
    batches = lines.where(lines.value.contains('"log/'))
    return batches.mapInArrow(_rows_of(connection, known), SCHEMA)


def _stream_of(line: str) -> tuple[str, tuple[str, str]] | None:
    """Its log's incarnation, its name and content type."""
    item = orjson.loads(line)["Item"]
    if not (item["pk"]["S"].startswith("bucket/") and item["sk"]["S"].startswith("stream/")):
        return None
    record = decode_stream(item)
    return record.incarnation, (record.key.stream_id, record.content_type.value)


def _rows_of(
    connection: ConnectionOptions, known: Any
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blobs = connect_blobs(connection)
        for batch in batches:
            for line in batch.column(0).to_pylist():
                found = _log_of(line, known.value)
                if found is not None:
                    yield _rows(*found, blobs)

    return rows


def _log_of(line: str, known: dict[str, tuple[str, str]]) -> tuple[BatchItem, StreamKey, str] | None:
    """A batch and whose it is; None for one without data, or of a stream that does not exist."""
    pk = _keys.decode(line).BatchItem.pk.S
    if not is_log_pk(pk):
        return None
    key, incarnation = decode_log_pk(pk)
    item = _batches.decode(line).BatchItem
    if incarnation not in known or item.end == item.start:
        return None
    return item, key, known[incarnation][1]


def _rows(item: BatchItem, key: StreamKey, content_type: str, blobs: Any) -> pa.RecordBatch:
    data = item.data
    if data is None:
        data = blobs.get(item.s.S if item.s else "")
    gathered = Rows(key.bucket, StreamPartition(key.stream_id, content_type, "", *_ALL))
    gathered.add(item, data)
    return gathered.take()

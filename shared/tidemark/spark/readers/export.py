"""A point-in-time export of the table to S3, as the same rows that the data source gives.

An export is gzipped JSON lines, `{"Item": {…}}`, in no order. Reading it costs the table
nothing, and costs less than queries from about the size on at which everything is wanted.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import orjson
import pyarrow as pa

from tidemark.log.schema import PACK_INDEX, decode_log_pk, decode_stream, is_end_mark, is_log_pk
from tidemark.protocol.stream_key import StreamKey
from tidemark.spark.clients.storage import connect_blobs
from tidemark.spark.options.connection import ConnectionOptions
from tidemark.spark.options.read import render_schema
from tidemark.spark.readers.columns import Rows
from tidemark.spark.readers.items import BatchItem, Text, pieces_of


class _Keyed(msgspec.Struct):
    pk: Text


class _KeyLine(msgspec.Struct):
    Item: _Keyed


class _BatchLine(msgspec.Struct):
    Item: BatchItem


_keys = msgspec.json.Decoder(_KeyLine)
_batches = msgspec.json.Decoder(_BatchLine, strict=False)


def read_export(spark: Any, path: str, connection: ConnectionOptions) -> Any:
    """Every message of every stream that exists in the export. Two passes over its lines: one
    for the streams, which are few, and one for their batches."""
    lines = spark.read.text(path)
    streams = lines.where(lines.value.contains('"stream/')).rdd.map(lambda row: decode_stream_line(row.value))
    known = spark.sparkContext.broadcast(dict(filter(None, streams.collect())))
    # Batches that a pack has replaced may still be there beside it.
    packs = lines.where(lines.value.contains(f'"{PACK_INDEX}"')).rdd.map(lambda row: pack_span(row.value))
    packed = spark.sparkContext.broadcast(outermost(filter(None, packs.collect())))

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blobs, whole = connect_blobs(connection), set(packed.value)
        for batch in batches:
            for line in batch.column(0).to_pylist():
                decoded = decode_batch_line(line)
                if decoded is None:
                    continue
                key, incarnation, item = decoded
                if incarnation not in known.value or item.end == item.start:
                    continue
                found = Rows(key.bucket, key.stream_id, known.value[incarnation], incarnation)
                is_whole = (incarnation, item.start, item.end) in whole
                if not is_whole and is_replaced(packed.value, incarnation, item.start):
                    continue
                for piece in pieces_of(item, blobs, item.start, item.end):
                    yield from found.add(piece)
                    yield from found.take_rest()

    return lines.where(lines.value.contains('"log/')).mapInArrow(rows, render_schema())


def decode_stream_line(line: str) -> tuple[str, str] | None:
    """A stream's incarnation and content type; None for other items."""
    item = orjson.loads(line)["Item"]
    if not (item["pk"]["S"].startswith("bucket/") and item["sk"]["S"].startswith("stream/")):
        return None
    if is_end_mark(item):
        return None
    record = decode_stream(item)
    return record.incarnation, record.content_type.value


def pack_span(line: str) -> tuple[str, int, int] | None:
    """The incarnation of a pack's log, and where the pack begins and ends; None for any other item."""
    decoded = decode_batch_line(line)
    if decoded is None or decoded[2].px is None:
        return None
    return decoded[1], decoded[2].start, decoded[2].end


def outermost(packs: Iterable[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """The packs, sorted, without those that a larger one has taken in and that are not removed yet."""
    found: list[tuple[str, int, int]] = []
    for incarnation, start, end in sorted(packs):
        if not found or found[-1][0] != incarnation or end > found[-1][2]:
            found.append((incarnation, start, end))
    return found


def is_replaced(packs: Sequence[tuple[str, int, int]], incarnation: str, start: int) -> bool:
    """Whether one of the `outermost` packs holds the batch or the pack that begins at `start`."""
    before = bisect_right(packs, (incarnation, start, sys.maxsize)) - 1
    return before >= 0 and packs[before][0] == incarnation and start < packs[before][2]


def decode_batch_line(line: str) -> tuple[StreamKey, str, BatchItem] | None:
    """A batch with its stream and incarnation; None for other items.

    The decoders stay in this module: a function inside another one is sent to the tasks with all
    that it names, and they cannot be pickled.
    """
    pk = _keys.decode(line).Item.pk.S
    if not is_log_pk(pk):
        return None
    return *decode_log_pk(pk), _batches.decode(line).Item

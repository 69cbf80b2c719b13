"""Streams made for a test, and what was read of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import orjson

from tests.support import BYTES, World
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.spark.failures import repeat_slow_start
from tidemark.spark.options.connection import ConnectionOptions
from tidemark.spark.options.read import ReadOptions, parse_read_options
from tidemark.spark.queries.plan import load_heads, pin_positions, plan_partitions, require_all
from tidemark.spark.readers.connect import connect
from tidemark.spark.readers.port import Reader

T = TypeVar("T")
Row = tuple[str, str, bytes]
#: The fixture `start`: it runs a job with these arguments. Exit code, standard output and standard error.
Start = Callable[..., tuple[int, str, str]]


def key(name: str) -> StreamKey:
    return StreamKey(PLAIN_BUCKET, name)


def filled(world: World, name: str, *bodies: bytes, content_type: Any = BYTES) -> None:
    process = world.process()
    process.create(key(name), content_type=content_type)
    for body in bodies:
        process.append(key(name), body, content_type=content_type)


def rows(frame: Any) -> list[Row]:
    """Offset, end and value of every row of a data frame, in the streams' order."""
    found = frame.select("offset", "end_offset", "position", "value").collect()
    found.sort(key=lambda row: (row["offset"], row["position"]))
    return [(row["offset"], row["end_offset"], bytes(row["value"])) for row in found]


def stored_values(world: World, name: str) -> list[Any]:
    """The messages of a stream of JSON."""
    data = world.process().read_all(key(name))
    values: list[Any] = orjson.loads(b"[" + data[:-1] + b"]") if data else []
    return values


def table_options(world: World) -> dict[str, str]:
    return {"transport": "dynamodb", "table": world.table_name, "blobBucket": world.bucket_name}


def read_here(origin: dict[str, str], **options: str) -> list[Row]:
    """The batch read in this process, step by step as Spark takes them."""
    parsed = parse_read_options(origin | options, streaming=False)
    reader, parts = plan_here(parsed)
    return [row for part in parts for row in rows_of(reader, part)]


def plan_here(options: ReadOptions) -> tuple[Reader, list[Any]]:
    reader = connect(options.connection)
    heads = load_heads(options, reader)
    require_all(options, reader, heads)
    starts, ends = pin_positions(options, reader, heads)
    return reader, list(plan_partitions(options, reader, starts, ends))


def rows_of(reader: Reader, part: Any) -> list[Row]:
    return [
        (row["offset"], row["end_offset"], row["value"])
        for batch in reader.read(part)
        for row in batch.select(["offset", "end_offset", "value"]).to_pylist()
    ]


def started(run: Callable[[], T], seconds: float = 900) -> T:
    """What runs a streaming query, on a machine that may be busy."""
    return repeat_slow_start(run, seconds, lambda _: None)


__all__ = [
    "ConnectionOptions",
    "filled",
    "key",
    "plan_here",
    "read_here",
    "rows",
    "rows_of",
    "started",
    "stored_values",
    "table_options",
]

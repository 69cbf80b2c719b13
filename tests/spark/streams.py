"""The streams of a test, and what is read of them step by step as Spark does it, without Spark."""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson

from tests.spark.serving import ThreadedServer
from tests.support import BYTES, World
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.delete import delete
from tidemark.spark.failures import SLOW_START
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.queries import load_heads, pin_positions, plan_partitions, require_all
from tidemark.spark.readers import connect
from tidemark.spark.readers.port import Reader

T = TypeVar("T")
Row = tuple[str, str, bytes]
#: The fixture `start`: it runs a job with these arguments. Exit code, standard output and standard error.
Start = Callable[..., tuple[int, str, str]]


class Streams:
    """The stream `name`, which no other test uses, and those whose names go on from there with a suffix."""

    def __init__(self, world: World, server: ThreadedServer, name: str) -> None:
        self.world, self.server, self.name = world, server, name
        self.process = world.process()
        self._types: dict[str, Any] = {}

    def key(self, suffix: str = "") -> StreamKey:
        return StreamKey(PLAIN_BUCKET, self.name + suffix)

    def fill(self, *bodies: bytes, suffix: str = "", content_type: Any = BYTES) -> None:
        """Create a stream, with an append for each body."""
        self._types[suffix] = content_type
        self.process.create(self.key(suffix), content_type=content_type)
        self.append(*bodies, suffix=suffix)

    def append(self, *bodies: bytes, suffix: str = "", **more: Any) -> None:
        for body in bodies:
            self.process.append(self.key(suffix), body, content_type=self._types[suffix], **more)

    def delete(self, suffix: str = "") -> None:
        delete(self.process.stores, self.key(suffix))

    def stored(self, suffix: str = "") -> bytes:
        return self.process.read_all(self.key(suffix))

    def values(self, suffix: str = "") -> list[Any]:
        """The messages of a stream of JSON."""
        values: list[Any] = orjson.loads(b"[" + self.stored(suffix)[:-1] + b"]")
        return values

    def by_table(self, **more: str) -> dict[str, str]:
        """Options that read the stream from the table, unless they name others."""
        return table_options(self.world) | self._subscribed(more)

    def by_http(self, **more: str) -> dict[str, str]:
        return {"url": self.server.url} | self._subscribed(more)

    def _subscribed(self, more: dict[str, str]) -> dict[str, str]:
        return more if "subscribePattern" in more else {"subscribe": self.name} | more


def table_options(world: World) -> dict[str, str]:
    return {"transport": "dynamodb", "table": world.table_name, "blobBucket": world.bucket_name}


def plan_here(given: dict[str, str], **more: str) -> tuple[Reader, list[Any]]:
    """A batch read, planned in this process: its reader and its partitions."""
    options = parse_read_options(given | more, streaming=False)
    reader = connect(options.connection)
    heads = load_heads(options, reader)
    require_all(options, reader, heads)
    starts, ends = pin_positions(options, reader, heads)
    return reader, list(plan_partitions(options, reader, starts, ends))


def table_of(reader: Reader, parts: Sequence[Any], columns: str) -> list[dict[str, Any]]:
    """What tasks read of these partitions: the chosen columns, row by row."""
    batches = (batch for part in parts for batch in reader.read(part, columns.split(",")))
    return [row for batch in batches for row in batch.to_pylist()]


def rows_of(reader: Reader, parts: Sequence[Any]) -> list[Row]:
    """Offset, end and value of every row."""
    rows = table_of(reader, parts, "offset,end_offset,value")
    return [(row["offset"], row["end_offset"], row["value"]) for row in rows]


def values_of(reader: Reader, parts: Sequence[Any]) -> list[bytes]:
    return [row["value"] for row in table_of(reader, parts, "value")]


def read_here(given: dict[str, str], **more: str) -> list[Row]:
    """A batch read in this process."""
    return rows_of(*plan_here(given, **more))


def started(run: Callable[[], T], seconds: float = 900) -> T:
    """What runs a streaming query, on a machine that may be busy: Spark waits ten seconds for a process of
    Python, and nothing was read then."""
    from pyspark.errors import StreamingQueryException

    deadline = time.monotonic() + seconds
    while True:
        try:
            return run()
        except StreamingQueryException as fault:
            if SLOW_START not in str(fault) or time.monotonic() > deadline:
                raise
            time.sleep(5)  # Those that were too slow import still.


def key(name: str) -> StreamKey:
    return StreamKey(PLAIN_BUCKET, name)


def filled(world: World, name: str, *bodies: bytes, content_type: Any = BYTES) -> None:
    process = world.process()
    process.create(key(name), content_type=content_type)
    for body in bodies:
        process.append(key(name), body, content_type=content_type)

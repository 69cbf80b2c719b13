"""A long stream before and after it is packed: `python -m benchmarks.packs` (ten million messages).

The table and the bucket are stand-ins (`tests/janitor/long_stream.py`): each read of an item makes the item,
and objects are files. The figures are calls, memory, and the CPU time of this project and of the stand-ins;
calls take no time. `--messages` sets a smaller number of messages. `--only numbers` measures the cost of a
read before and after. `--only rows`, in Spark's environment (`.venv-spark/bin/python`), measures the reader
for Spark, which turns packs into Arrow batches, without Spark itself.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from benchmarks import prices
from benchmarks.reading import read_event
from tests.janitor.long_stream import HOUR_MS, KEY, MESSAGE_BYTES, LongStream, Peak, data_between
from tests.support import BYTES, append_request, create_request
from tidemark.aws.dynamodb import DynamoDB
from tidemark.cold_start import spare_what_is_loaded
from tidemark.http.app import create_app
from tidemark.http.backend import lambda_backend
from tidemark.http.lambda_adapter import adapted
from tidemark.janitor.sweep import sweep
from tidemark.log import pack_format
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.log.table import Table
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import append
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.read import read
from tidemark.service.snapshots import PublishRequest, publish_snapshot
from tidemark.settings import Settings

FORK: Final = StreamKey("v1", "fork")
#: Bytes that DynamoDB bills for the read and for the storage of such a message.
ITEM_BYTES: Final = 213
STORED_BYTES: Final = ITEM_BYTES + 100
#: A month's storage of a GiB, in dollars: the table, its backup, and S3.
TABLE_GIB, BACKUP_GIB, S3_GIB = 0.25, 0.20, 0.023
#: Messages of a cold catch-up of 5 MB, messages that Spark reads, and rounds of each.
COLD_MESSAGES: Final = 50_000
SPARK_MESSAGES: Final = 50_000
ROUNDS: Final = 10


@contextmanager
def step(name: str, stream: LongStream) -> Iterator[None]:
    """Print the calls, the seconds of CPU and of time, and the memory that a step takes, as a row."""
    stream.calls.clear()
    peak, cpu, wall = Peak(), time.process_time(), time.monotonic()
    yield
    calls = ", ".join(f"{count:,} {operation}" for operation, count in sorted(stream.calls.items()))
    print(
        f"| {name} | {calls} | {time.process_time() - cpu:,.1f} | {time.monotonic() - wall:,.0f} "
        f"| {peak.grown_bytes / 1e6:,.0f} |",
        flush=True,
    )


def whole_life(messages: int, folder: Path) -> None:
    stream = LongStream(messages, folder)
    print("| step | calls | CPU, s | time, s | memory at most, MB more |\n| --- | --- | ---: | ---: | ---: |")
    with step("pack", stream):
        sweep(stream.process())
    assert stream.batches_left == 0
    print(f"objects: {len(stream.objects)}, {stream.objects.size() / 1e6:,.0f} MB", flush=True)
    with step("read all", stream):
        read_all(stream)
    with step("10,000 random reads", stream):
        chance, stores = random.Random(1), stream.process()
        for _ in range(10_000):
            start = chance.randrange(0, messages) * MESSAGE_BYTES
            page = read(stores, KEY, start, small=True)
            end = min(page.page.end, stream.end)
            assert page.data[: end - start] == data_between(start, end)
    inside = messages // 2 * MESSAGE_BYTES
    with step("fork in the middle, read around it, delete it", stream):
        stores = stream.process()
        create(stores, FORK, create_request(None, fork=ForkPoint(KEY, inside, 0)))
        append(stores, FORK, [append_request(b"[2]", content_type=stream.record.content_type)])
        assert read(stores, FORK, inside - 200).data == data_between(inside - 200, inside) + b"2,"
        delete(stores, FORK)
        stream.now_ms += 2 * HOUR_MS
        sweep(stream.process())
    with step("trim the first half", stream):
        publish_snapshot(stream.process(), KEY, PublishRequest(inside, BYTES, b"folded"))
        stream.now_ms += 2 * HOUR_MS
        sweep(stream.process())
    print(f"objects: {len(stream.objects)}", flush=True)
    with step("delete, and what is left goes", stream):
        delete(stream.process(), KEY)
        stream.now_ms += 2 * HOUR_MS
        sweep(stream.process())
    assert len(stream.objects) == 0


def read_all(stream: LongStream) -> None:
    stores, start, is_at_tail = stream.process(), 0, False
    while not is_at_tail:
        reading = read(stores, KEY, start)
        end = min(reading.page.end, stream.end)
        assert reading.data[: end - start] == data_between(start, end)
        start, is_at_tail = reading.page.end, reading.page.up_to_date


def numbers(folder: Path) -> None:
    """Print the cost of a read of a 5 MB conversation by the `read` function, before and after."""
    stream = LongStream(COLD_MESSAGES, folder)
    [plain] = catch_up(stream, [""])
    sweep(stream.process())
    stored = stream.objects.size()
    by_zlib, packed = catch_up(stream, ["zlib", "isal"])
    megabytes = stream.end / 1e6
    factor = 1e9 / stream.end
    items_gb, objects_gb = COLD_MESSAGES * STORED_BYTES * factor / 2**30, stored * factor / 2**30
    three, same = (plain, by_zlib, packed), "the same"
    rows = [
        ("CPU of a read, ms a MB", *(f"{each['cpu'] * 1e3 / megabytes:.1f}" for each in three)),
        ("CPU of an environment's first read, ms", *(f"{each['first'] * 1e3:,.0f}" for each in three)),
        ("calls", plain["calls"], same, packed["calls"]),
        ("stored for 1 GB of messages", f"{items_gb:.2f} GiB", same, f"{objects_gb:.2f} GiB"),
        ("a month of that, $", f"{items_gb * TABLE_GIB:.2f}", same, f"{objects_gb * S3_GIB:.3f}"),
        ("a month of its backup, $", f"{items_gb * BACKUP_GIB:.2f}", same, "0"),
        ("a full read of 1 GB, $", *(f"{each['dollars'] * factor:.5f}" for each in three)),
    ]
    print("| 5 MB of 100-byte messages | plain | packed, zlib | packed |\n| --- | ---: | ---: | ---: |")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def inflated_by(library: str) -> AbstractContextManager[Any]:
    """Inflate blocks with zlib, as on a platform without a wheel of isal; any other name changes nothing."""
    chosen = zlib if library == "zlib" else pack_format.fast_zlib()
    return patch.object(pack_format, "fast_zlib", lambda: chosen)


def catch_up(stream: LongStream, libraries: list[str]) -> list[dict[str, Any]]:
    """Read all pages by the handler with each library in turn, each time in a cold environment. `first` is
    the first time."""
    spare_what_is_loaded()
    taken: dict[str, list[float]] = {library: [] for library in libraries}
    for library in libraries * ROUNDS:
        handler = adapted(create_app(lambda_backend(stream.process(), Settings())).respond)
        stream.calls.clear()
        with inflated_by(library):
            began, offset, received = time.process_time(), "-1", 0
            while True:
                answer = handler(read_event(f"/v1/stream/{KEY.stream_id}", offset), None)
                assert answer["statusCode"] == 200, answer
                received += len(answer["body"]) * 3 // 4
                offset = answer["headers"]["stream-next-offset"]
                if "stream-up-to-date" in answer["headers"]:
                    break
            taken[library].append(time.process_time() - began)
        assert received > stream.end * 0.99
    calls = stream.calls
    # A consistent read takes a unit for each 4 KB; a query, for all that it finds.
    units = calls["GetItem"] + (
        COLD_MESSAGES * ITEM_BYTES / 4096 if not calls["GetRange"] else calls["Query"]
    )
    dollars = (units * prices.READ_UNIT + calls["GetRange"] * prices.S3_READ) / 1e6
    listed = ", ".join(f"{count} `{name}`" for name, count in sorted(calls.items()))
    return [
        {"cpu": min(times), "first": times[0], "calls": listed, "dollars": dollars}
        for times in taken.values()
    ]


def spark_rows(folder: Path) -> None:
    """Print the rows per CPU-second that the reader for Spark makes from packs, in the best round."""
    from tidemark.spark.options import ConnectionOptions
    from tidemark.spark.readers import dynamodb
    from tidemark.spark.readers.columns import join_batches

    stream = LongStream(SPARK_MESSAGES, folder)
    sweep(stream.process())

    def connect(_connection: ConnectionOptions, client: type[DynamoDB] = DynamoDB) -> Table:
        return DynamoDBTable(client(stream.table.send), "long")

    here: dict[str, Any] = {"connect_table": connect, "connect_blobs": lambda _: stream.process().blobs}
    with patch.multiple(dynamodb, **here):
        reader = dynamodb.DynamoDBReader(ConnectionOptions())
        head = reader.heads([KEY.stream_id])[KEY.stream_id]
        [partition] = reader.partitions(KEY.stream_id, head.earliest, head.tail, stream.end * 2)
        for library in ("zlib", "isal"):
            taken = []
            for _ in range(ROUNDS):
                with inflated_by(library):
                    began = time.process_time()
                    rows = sum(batch.num_rows for batch in join_batches(reader.read(partition)))
                    taken.append(time.process_time() - began)
                assert rows == SPARK_MESSAGES + 1, rows
            print(f"{library}: {SPARK_MESSAGES / min(taken) / 1e6:.2f} million rows a CPU-second")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packs", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--only", choices=["numbers", "life", "rows"])
    asked = parser.parse_args()
    if asked.only == "rows":
        with tempfile.TemporaryDirectory() as folder:
            spark_rows(Path(folder))
        return 0
    if asked.only != "life":
        with tempfile.TemporaryDirectory() as folder:
            numbers(Path(folder))
    if asked.only != "numbers":
        print(f"\n{asked.messages:,} messages of {MESSAGE_BYTES} bytes")
        with tempfile.TemporaryDirectory() as folder:
            whole_life(asked.messages, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())

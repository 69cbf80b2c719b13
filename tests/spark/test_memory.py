"""The memory of a task is bounded, whatever the stream's size: N rows and 8 N, each in a fresh process.

The most that a process ever held is compared, Arrow's and the parsers' own memory included. N is large
enough for every buffer to be full once (`PIECE_BYTES`, `BATCH_BYTES`, `HELD_BYTES`), so that what grows from
there on grows with the stream. The process is this file, run as `python -m tests.spark.test_memory KIND ROWS
PLACE`, where the place is the URL of a server to read from or a directory to stage in.
"""

import contextlib
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from benchmarks.spark_standin import ROW_BYTES, STORED, row
from tests.http_server import Handler, serving
from tidemark.spark.options import ConnectionOptions
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.readers import connect
from tidemark.spark.staging import connect_staging
from tidemark.spark.writer.manifest import Manifest
from tidemark.spark.writer.publish import Publication, publish
from tidemark.spark.writer.writers import plan_write

ROOT = Path(__file__).parents[2]
ROWS, STAGED = 60_000, 80_000
#: `TIMES=40 make testspark ARGS="-k test_memory -s"` takes half a gigabyte.
TIMES = int(os.environ.get("TIMES", "8"))
#: Of the bytes that were added: what an allocator does not give back at once is less than that.
SHARE = 0.15


def table(url: str) -> ConnectionOptions:
    given = {"transport": "dynamodb", "table": "t", "dynamodbEndpoint": url, "region": "us-east-1"}
    return parse_read_options(given | {"subscribe": "bench"}, streaming=False).connection


def server(url: str) -> ConnectionOptions:
    return parse_read_options({"url": url, "subscribe": "bench"}, streaming=False).connection


def read(origin: ConnectionOptions, rows: int) -> None:
    """The whole stream as one part, as one task has it."""
    reader = connect(origin)
    head = reader.heads(["bench"])["bench"]
    (part,) = reader.partitions("bench", head.earliest, head.tail, 1 << 40)
    assert sum(batch.num_rows for batch in reader.read(part)) == rows


def stage(directory: str, rows: int, streams: int) -> None:
    """What `ingest`, `replay` and a streaming sink do, in a task and in the commit: rows of 450 bytes."""
    given = {"url": "http://127.0.0.1:1", "streamColumn": "stream", "stagingDir": directory}
    given |= {"producerId": "p", "contentType": "application/json"}
    schema = StructType([StructField("stream", StringType()), StructField("value", BinaryType())])
    write = plan_write(given, schema)
    size = 5_000
    names = pa.array([f"stream-{index % streams}" for index in range(size)])
    # Each row is of a size of its own: what is remembered of each would be seen.
    values = (
        pa.array([row(index) + b" " * (300 + index % 300) for index in range(low, low + size)])
        for low in range(0, rows, size)
    )
    manifest = Manifest("", write.stage((names, some) for some in values).runs)
    assert manifest.rows == rows
    taken, lambda_backend = [0], threading.Lock()

    def append(_publication: Publication, bodies: Iterator[bytes]) -> None:
        for body in bodies:
            with lambda_backend:
                taken[0] += bool(body)

    nobody: Any = SimpleNamespace(append=append)
    publications = [
        Publication(stream, write.content_type, runs, "p", 0) for stream, runs in manifest.by_stream().items()
    ]
    publish(nobody, connect_staging(write.options), publications)
    assert taken[0] == sum(run.appends for run in manifest.runs)


KINDS: dict[str, Callable[[str, int], None]] = {
    "read over dynamodb": lambda place, rows: read(table(place), rows),
    "read over http": lambda place, rows: read(server(place), rows),
    "stage": lambda place, rows: stage(place, rows, 1),
    "stage to many streams": lambda place, rows: stage(place, rows, 500),
}


def assert_bounded(kind: str, rows: int, row_bytes: int, place: Callable[[int], Any]) -> None:
    """`place` is a context whose value is the place with so many rows."""
    peaks = []
    for count in (rows, TIMES * rows):
        with place(count) as where:
            command = [sys.executable, "-m", "tests.spark.test_memory", kind, str(count), str(where)]
            environment = os.environ | {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
            done = subprocess.run(
                command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            peaks.append(float(done.stdout))
    added = (TIMES - 1) * rows * row_bytes / 1024 / 1024
    said = f"{peaks[0]:.0f} MB, then {peaks[1]:.0f} MB for {added:.0f} MB more to read"
    print(said)
    assert peaks[1] - peaks[0] < SHARE * added, said


@contextlib.contextmanager
def stand_in(rows: int) -> Iterator[str]:
    """DynamoDB with one stream, a hundred messages in an item, as a process of its own."""
    command = [sys.executable, "-m", "benchmarks.spark_standin", str(rows), "100"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


class OnePage(Handler):
    """A server of another make, that answers a read with everything there is."""

    protocol_version = "HTTP/1.1"
    rows: int

    def answer(self) -> None:
        is_read, is_at_end = self.command == "GET", self.path.endswith("end")
        length = (2 if is_at_end else self.rows * STORED + 1) if is_read else 0
        self.send_response(200)
        headers = {"Content-Type": "application/json", "Stream-Next-Offset": "end", "Content-Length": length}
        for name, value in (headers | {"Stream-Up-To-Date": "true"}).items():
            self.send_header(name, str(value))
        self.end_headers()
        if not is_read:
            return
        piece = b",".join(row(index) for index in range(1000))
        self.wfile.write(b"[" if is_at_end else b"[" + piece)
        for _ in range(0 if is_at_end else self.rows // 1000 - 1):
            self.wfile.write(b"," + piece)
        self.wfile.write(b"]")


def test_reading() -> None:
    assert_bounded("read over dynamodb", ROWS, ROW_BYTES, stand_in)


def test_a_page_without_a_limit() -> None:
    """Its messages are handed on while it arrives."""
    assert_bounded(
        "read over http", ROWS, ROW_BYTES, lambda rows: serving(type("Sized", (OnePage,), {"rows": rows}))
    )


@pytest.mark.parametrize("kind", ["stage", "stage to many streams"])
def test_staging_and_publishing(kind: str, tmp_path: Path) -> None:
    assert_bounded(kind, STAGED, 450, lambda rows: contextlib.nullcontext(tmp_path / str(rows)))


if __name__ == "__main__":
    wanted, many, where_to = sys.argv[1:]
    KINDS[wanted](where_to, int(many))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)

"""The memory of a task is bounded, whatever the stream's size: N rows and 8 N, each in a fresh process.

The most that a process ever held is compared, Arrow's and the parsers' own memory included. N is large
enough for every buffer to be full once (`PIECE_BYTES`, `BATCH_BYTES`, `HELD_BYTES`), so that what grows
from there on grows with the stream.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.spark_standin import ROW_BYTES, STORED, row

ROOT = Path(__file__).parents[2]
ROWS = 60_000
STAGED = 80_000
#: `TIMES=40 make testspark ARGS="-k test_memory -s"` takes half a gigabyte.
TIMES = int(os.environ.get("TIMES", "8"))
#: Of the bytes that were added: what an allocator does not give back at once is less than that.
SHARE = 0.15


def peak_megabytes(kind: str, rows: int, place: str) -> float:
    command = [sys.executable, "-m", "tests.spark.memory_probe", kind, str(rows), place]
    environment = os.environ | {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def assert_bounded(few: float, many: float, *, rows: int = ROWS, row_bytes: int = ROW_BYTES) -> None:
    added = (TIMES - 1) * rows * row_bytes / 1024 / 1024
    print(f"{few:.0f} MB, then {many:.0f} MB for {added:.0f} MB more to read")
    assert many - few < SHARE * added, f"{few:.0f} MB, then {many:.0f} MB for {added:.0f} MB more to read"


@contextlib.contextmanager
def stand_in(rows: int, per_item: int) -> Iterator[str]:
    """DynamoDB and an HTTP server, with one stream, as a process of its own."""
    command = [sys.executable, "-m", "benchmarks.spark_standin", str(rows), str(per_item)]
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


@pytest.mark.parametrize(
    ("kind", "per_item"),
    [("read over dynamodb", 1), ("read over dynamodb", 100), ("read over http", 100), ("fold", 100)],
)
def test_reading_and_folding(kind: str, per_item: int) -> None:
    """Both transports, pages of few and of many messages; a fold of a thousand keys."""
    peaks = []
    for rows in (ROWS, TIMES * ROWS):
        with stand_in(rows, per_item) as url:
            peaks.append(peak_megabytes(kind, rows, url))
    assert_bounded(*peaks)


class OnePage(BaseHTTPRequestHandler):
    """A server of another make, that answers a read with everything there is."""

    protocol_version = "HTTP/1.1"
    rows: int

    def log_message(self, *_: Any) -> None:
        return

    def do_HEAD(self) -> None:
        self._begin(0)

    def do_GET(self) -> None:
        if self.path.endswith("end"):
            self._begin(2)
            self.wfile.write(b"[]")
            return
        self._begin(self.rows * STORED + 1)
        piece = b",".join(row(index) for index in range(1000))
        self.wfile.write(b"[" + piece)
        for _ in range(self.rows // 1000 - 1):
            self.wfile.write(b"," + piece)
        self.wfile.write(b"]")

    def _begin(self, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Stream-Next-Offset", "end")
        self.send_header("Stream-Up-To-Date", "true")
        self.send_header("Content-Length", str(length))
        self.end_headers()


def test_a_page_without_a_limit() -> None:
    """Its messages are handed on while it arrives."""
    peaks = []
    for rows in (ROWS, TIMES * ROWS):
        handler = type("Sized", (OnePage,), {"rows": rows})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            peaks.append(peak_megabytes("read over http", rows, f"http://127.0.0.1:{server.server_port}"))
            server.shutdown()
    assert_bounded(*peaks)


@pytest.mark.parametrize("kind", ["stage", "stage to many streams", "stage an append for each row"])
def test_staging_and_publishing(kind: str, tmp_path: Path) -> None:
    """What `ingest`, `replay` and a streaming sink do, in a task and in the commit: rows of 450 bytes."""
    few, many = (peak_megabytes(kind, rows, str(tmp_path / str(rows))) for rows in (STAGED, TIMES * STAGED))
    assert_bounded(few, many, rows=STAGED, row_bytes=450)

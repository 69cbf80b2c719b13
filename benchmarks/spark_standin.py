"""A stand-in for DynamoDB and for an HTTP server, a process of its own: only the reader's CPU counts.

Every stream in it is the same: `rows` JSON messages of 226 bytes, in batches of `per_item` messages. Pages
are rendered once and sent as they are. What is appended to it is thrown away.
"""

from __future__ import annotations

import socket
import sys
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import orjson

from tidemark.log.records import Batch, StreamRecord
from tidemark.log.schema import encode_batch, encode_stream, log_pk
from tidemark.protocol.content_type import parse_content_type
from tidemark.protocol.expiry import NEVER
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail

ROW_BYTES: Final = 226
STORED: Final = ROW_BYTES + 1
#: What DynamoDB counts of an item beside its bytes, about.
ITEM_OVERHEAD: Final = 100
QUERY_BYTES: Final = 1_000_000
PAGE_ROWS: Final = 4 * 1024 * 1024 // STORED
JSON = parse_content_type("application/json")
KEY = StreamKey("v1", "bench")


def row(index: int) -> bytes:
    """JSON of exactly 226 bytes, with one of a thousand keys."""
    head = orjson.dumps(
        {"key": f"k{index % 1000:03}", "n": index % 10**6, "at": "2030-01-15T12:00:00Z", "f": 1.5}
    )
    return head[:-1] + b',"text":"' + b"x" * (ROW_BYTES - len(head) - 10) + b'"}'


class StandIn:
    def __init__(self, rows: int, per_item: int) -> None:
        self.rows = rows
        self.per_item = per_item
        self.batch_bytes = per_item * STORED

    def stream(self) -> dict[str, Any]:
        return {"Item": encode_stream(StreamRecord(KEY, "i", JSON, NEVER, 1, 1))}

    def batch(self, index: int) -> dict[str, Any]:
        data = b"".join(row(index * self.per_item + n) + b"," for n in range(self.per_item))
        start = index * self.batch_bytes
        batch = Batch(
            start, Tail(start + len(data)), "append-id-16byte", 1, data, lengths=(STORED,) * self.per_item
        )
        return encode_batch(log_pk(KEY, "i"), batch)

    @cache  # noqa: B019 - one object for the life of the process
    def page(self, first: int) -> bytes:
        count = max(1, QUERY_BYTES // (self.batch_bytes + ITEM_OVERHEAD))
        last = min(first + count, self.rows // self.per_item)
        answer: dict[str, Any] = {"Items": [self.batch(index) for index in range(first, last)]}
        if last < self.rows // self.per_item:
            answer["LastEvaluatedKey"] = {}
        return orjson.dumps(answer)

    def query(self, asked: dict[str, Any]) -> bytes:
        values = asked["ExpressionAttributeValues"]
        low, high = values[":low"]["S"], values[":high"]["S"]
        if not asked["ScanIndexForward"]:
            end = self.rows * STORED if not high.isdigit() else int(high)
            return orjson.dumps({"Items": [self.batch(min(end, self.rows * STORED - 1) // self.batch_bytes)]})
        first = -(-int(low.rstrip(".")) // self.batch_bytes) + low.endswith(".")
        return self.page(first) if first * self.batch_bytes <= int(high) else b'{"Items":[]}'

    @cache  # noqa: B019
    def json_page(self) -> bytes:
        return b"[" + b",".join(row(index) for index in range(PAGE_ROWS)) + b"]"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stand_in: StandIn

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_: Any) -> None:
        return

    def _send(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(200)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        if operation == "GetItem":
            self._send(orjson.dumps(self.stand_in.stream()))
        elif operation == "Query":
            self._send(self.stand_in.query(orjson.loads(body)))
        else:
            self._send(b"")

    def do_HEAD(self) -> None:
        self._page(self.stand_in.rows * STORED, b"")

    def do_GET(self) -> None:
        offset = parse_qs(urlsplit(self.path).query)["offset"][0]
        start = 0 if offset == "-1" else int(offset)
        self._page(start + PAGE_ROWS * STORED, self.stand_in.json_page())

    def _page(self, end: int, body: bytes) -> None:
        whole = self.stand_in.rows // PAGE_ROWS * PAGE_ROWS * STORED
        headers = {"Content-Type": "application/json", "Stream-Next-Offset": render_offset(min(end, whole))}
        if end >= whole:
            headers["Stream-Up-To-Date"] = "true"
        self._send(body, headers)


def main() -> None:
    Handler.stand_in = StandIn(int(sys.argv[1]), int(sys.argv[2]))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

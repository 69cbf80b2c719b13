"""A stand-in for DynamoDB, S3 and an HTTP server, a process of its own: only the reader's CPU counts.

Every stream in it is the same: `rows` JSON messages of 226 bytes, in batches of `per_item` messages, or, with
0, in packs of batches of one message. Pages are rendered once and sent as they are. What is appended to it is
thrown away, and of no producer it has anything yet.
"""

from __future__ import annotations

import hashlib
import socket
import sys
from contextlib import suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import orjson

from tidemark.log.pack_format import BLOCK_BYTES, PackWriter
from tidemark.log.records import Batch, StreamRecord
from tidemark.log.schema import SK, encode_batch, encode_pack, encode_stream, log_pk
from tidemark.protocol.expiry import NEVER
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.spark.writer.publish import PROBE_SEQ

ROW_BYTES: Final = 226
STORED: Final = ROW_BYTES + 1
#: What DynamoDB counts of an item beside its bytes, about.
ITEM_OVERHEAD: Final = 100
QUERY_BYTES: Final = 1_000_000
#: Of a pack: 8 MB of data.
PACK_ROWS: Final = 8 * 1024 * 1024 // STORED
PAGE_ROWS: Final = 4 * 1024 * 1024 // STORED
JSON = parse_content_type("application/json")
KEY = StreamKey("v1", "bench")


def row(index: int) -> bytes:
    """JSON of exactly 226 bytes, with one of a thousand keys. It deflates to a quarter, as JSON does."""
    head = orjson.dumps(
        {"key": f"k{index % 1000:03}", "n": index % 10**6, "at": "2030-01-15T12:00:00Z", "f": 1.5}
    )
    text = 3 * hashlib.sha256(b"%d" % index).hexdigest().encode()
    return head[:-1] + b',"text":"' + text[: ROW_BYTES - len(head) - 10] + b'"}'


class StandIn:
    def __init__(self, rows: int, per_item: int) -> None:
        self.rows = rows
        self.per_item = per_item
        self.batch_bytes = per_item * STORED

    def item(self, key: dict[str, Any]) -> dict[str, Any]:
        """A stream, if the key is one's. Nothing else is there: no format, and nothing at any tail."""
        if not key[SK]["S"].startswith("stream/"):
            return {}
        return {"Item": encode_stream(StreamRecord(KEY, "i", JSON, NEVER, 1, 1)) | key}

    def items(self, asked: dict[str, Any]) -> dict[str, Any]:
        [(table, keys)] = asked["RequestItems"].items()
        found = [item["Item"] for item in map(self.item, keys["Keys"]) if item]
        return {"Responses": {table: found}, "UnprocessedKeys": {}}

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


class PackedStandIn(StandIn):
    """The last batch of a log is in no pack. The one page of the table has all packs."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, 1)
        self.entries: dict[str, dict[str, Any]] = {}
        self.objects: dict[str, bytes] = {}
        for first in range(0, rows - 1, PACK_ROWS):
            packed = PackWriter(first * STORED, BLOCK_BYTES)
            last = min(first + PACK_ROWS, rows - 1)
            for index in range(first, last):
                packed.add(row(index) + b",", (STORED,), (), 1)
            body, index_bytes = packed.finish()
            self.objects[f"pack-{first}"] = body
            ends = [Batch(n * STORED, Tail((n + 1) * STORED), "append-id", 1) for n in (first, last - 1)]
            item = encode_pack(log_pk(KEY, "i"), ends[0], ends[1], f"pack-{first}", index_bytes)
            self.entries[item[SK]["S"]] = item
        tail = self.batch(rows - 1)
        self.entries[tail[SK]["S"]] = tail

    def query(self, asked: dict[str, Any]) -> bytes:
        values = asked["ExpressionAttributeValues"]
        low, high = values[":low"]["S"], values[":high"]["S"]
        found = [item for sk, item in self.entries.items() if low <= sk <= high]
        if not asked["ScanIndexForward"]:
            found = found[-1:]
        return orjson.dumps({"Items": found})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stand_in: StandIn

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_: Any) -> None:
        return

    def _send(self, body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            # A reader that needs no more of a page goes.
            with suppress(ConnectionError):
                self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        if operation == "GetItem":
            self._send(orjson.dumps(self.stand_in.item(orjson.loads(body)["Key"])))
        elif operation == "BatchGetItem":
            self._send(orjson.dumps(self.stand_in.items(orjson.loads(body))))
        elif operation == "Query":
            self._send(self.stand_in.query(orjson.loads(body)))
        elif self.headers.get("Producer-Seq") == str(PROBE_SEQ):
            self._send(b"", {"Producer-Expected-Seq": "0"}, status=409)
        else:
            self._send(b"", status=204)

    def do_HEAD(self) -> None:
        self._page(self.stand_in.rows * STORED, b"")

    def do_GET(self) -> None:
        if "Range" in self.headers:
            return self._range()
        offset = parse_qs(urlsplit(self.path).query)["offset"][0]
        start = 0 if offset == "-1" else int(offset)
        self._page(start + PAGE_ROWS * STORED, self.stand_in.json_page())
        return None

    def _range(self) -> None:
        """A part of an object of S3."""
        assert isinstance(self.stand_in, PackedStandIn)
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        body = self.stand_in.objects[urlsplit(self.path).path.rpartition("/")[2]][first : last + 1]
        self._send(body, status=206)

    def _page(self, end: int, body: bytes) -> None:
        whole = self.stand_in.rows // PAGE_ROWS * PAGE_ROWS * STORED
        headers = {"Content-Type": "application/json", "Stream-Next-Offset": render_offset(min(end, whole))}
        if end >= whole:
            headers["Stream-Up-To-Date"] = "true"
        self._send(body, headers)


def main() -> None:
    rows, per_item = map(int, sys.argv[1:3])
    Handler.stand_in = StandIn(rows, per_item) if per_item else PackedStandIn(rows)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

"""CPU of a catch-up read of many small messages: `python -m benchmarks.reading`.

The stream is one of single appends, so each message is an item of its own. The read goes through the `read`
function's application and adapter; a stand-in answers its queries with what DynamoDB would, made beforehand.
So what is left is the CPU from DynamoDB's JSON to the answer in base64. `--json` prints the rows alone.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from bisect import bisect_left
from types import SimpleNamespace
from typing import Any, Final

import orjson

from tidemark.aws.dynamodb import DynamoDB
from tidemark.cold_start import spare_what_is_loaded
from tidemark.http.app import create_app
from tidemark.http.backend import lambda_backend
from tidemark.http.lambda_adapter import adapted
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.log.records import Batch, StreamRecord
from tidemark.log.schema import encode_batch, encode_stream, log_pk
from tidemark.protocol.expiry import NEVER
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.stream_key import parse_plain_path
from tidemark.protocol.tail import Tail
from tidemark.service.stores import Stores
from tidemark.settings import Settings

#: Of a message as it is sent, and the most CPU that a megabyte of them may cost, in milliseconds.
TARGETS: Final = {100: 60.0, 1000: 20.0, 60_000: 12.0}
ROUNDS: Final = 9
NOW_MS: Final = 1_760_000_000_000
STREAM_BYTES: Final = 2_000_000
#: DynamoDB ends a page of a query here. It counts names and values, binary ones not in base64.
PAGE_BYTES: Final = 1024 * 1024


class StoredStream:
    """A JSON stream of single appends, behind DynamoDB's own operations."""

    def __init__(self, message_bytes: int) -> None:
        self.key = parse_plain_path("bench/reading", encoded=False)
        self.record = StreamRecord(
            self.key, "incarnation00000", parse_content_type("application/json"), NEVER, 0, 0
        )
        pk, start = log_pk(self.key, self.record.incarnation), 0
        self._keys: list[str] = []
        self._items: list[bytes] = []
        self._sizes: list[int] = []
        for number in range(STREAM_BYTES // message_bytes):
            data = a_message(message_bytes - 1, number) + b","
            after = Tail(start + len(data))
            batch = Batch(start, after, "0123456789abcdef", NOW_MS, data, None, (len(data),))
            item = encode_batch(pk, batch)
            self._keys.append(item["sk"]["S"])
            self._items.append(orjson.dumps(item))
            self._sizes.append(len(data) + 100)
            start += len(data)
        self.size = start
        self.messages = len(self._items)
        self._replies: dict[bytes, bytes] = {}

    def send(self, operation: str, body: bytes) -> tuple[int, bytes]:
        if body not in self._replies:
            self._replies[body] = self._reply(operation, orjson.loads(body))
        return 200, self._replies[body]

    def _reply(self, operation: str, asked: dict[str, Any]) -> bytes:
        if operation == "GetItem":
            return orjson.dumps({"Item": encode_stream(self.record)})
        values = asked["ExpressionAttributeValues"]
        first = end = bisect_left(self._keys, values[":low"]["S"])
        page_bytes = 0
        while end < len(self._keys) and page_bytes < PAGE_BYTES:
            page_bytes += self._sizes[end]
            end += 1
        more = b',"LastEvaluatedKey":{}' if end < len(self._keys) else b""
        return b'{"Items":[' + b",".join(self._items[first:end]) + b"]" + more + b"}"


def a_message(size: int, number: int) -> bytes:
    """A JSON object of `size` bytes, most of them digits that deflate to half."""
    chance = random.Random(number)
    start = b'{"n":%d,"text":"' % number
    digits = size - len(start) - 2
    return start + chance.randbytes(digits // 2).hex().encode().ljust(digits, b"0") + b'"}'


def read_all(stream: StoredStream) -> tuple[float, int]:
    """Seconds of CPU for all pages, in an environment that knows nothing yet, and how many pages."""
    settings = Settings()
    no_blobs: Any = SimpleNamespace(get_range=None)  # Everything is small.
    stores = Stores(DynamoDBTable(DynamoDB(stream.send), "t"), no_blobs)
    handler = adapted(create_app(lambda_backend(stores, settings)).respond)
    offset, pages, received = "-1", 0, 0
    began = time.process_time()
    while True:
        answer = handler(read_event("/v1/stream/bench/reading", offset), None)
        assert answer["statusCode"] == 200, answer
        pages += 1
        received += len(answer["body"]) * 3 // 4
        offset = answer["headers"]["stream-next-offset"]
        if "stream-up-to-date" in answer["headers"]:
            break
    seconds = time.process_time() - began
    assert received > stream.size * 0.99, "the whole stream was read"
    return seconds, pages


def read_event(path: str, offset: str) -> dict[str, Any]:
    """A catch-up read as API Gateway sends it to the function."""
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": f"offset={offset}",
        "headers": {"host": "example.execute-api.us-east-1.amazonaws.com"},
        "requestContext": {
            "http": {"method": "GET", "path": path, "sourceIp": "203.0.113.7"},
            "domainName": "example.execute-api.us-east-1.amazonaws.com",
        },
        "isBase64Encoded": False,
    }


def measure(message_bytes: int) -> dict[str, Any]:
    stream = StoredStream(message_bytes)
    read_all(stream)
    spare_what_is_loaded()
    best = min(read_all(stream)[0] for _ in range(ROUNDS))
    return {
        "message_bytes": message_bytes,
        "cpu_ms_per_mb": round(best * 1000 / (stream.size / 1e6), 1),
        "cpu_us_per_message": round(best * 1e6 / stream.messages, 2),
        "to_reach": TARGETS[message_bytes],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measure(message_bytes) for message_bytes in TARGETS]
    if arguments.json:
        print(json.dumps(rows))
        return 0
    print("| bytes of a message | ms of CPU per MB | µs per message | to reach, ms per MB |")
    print("| ---: | ---: | ---: | ---: |")
    for row in rows:
        verdict = "✓" if row["cpu_ms_per_mb"] <= row["to_reach"] else "✗"
        measured = f"{row['cpu_ms_per_mb']} | {row['cpu_us_per_message']}"
        print(f"| {row['message_bytes']:,} | {measured} | {row['to_reach']:.0f} {verdict} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

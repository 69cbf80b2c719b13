"""A stand-in for DynamoDB inside urllib3: it answers before anything is sent, so only CPU is measured.

It stands below boto3 and below any other client over urllib3, and so costs all of them the same. It keeps
what is put, so that a stream can be created and found; once `instant`, it answers a put with `{}` and keeps
nothing.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import urllib3
from urllib3.connectionpool import HTTPConnectionPool

Item = dict[str, Any]
NOTHING = b"{}"
#: DynamoDB's own JSON has these as base64 text, boto3 wants them as bytes.
BINARY = "B"


class InstantTable:
    """`calls` counts by operation; `last_put` holds the arguments with which boto3 would put the same."""

    def __init__(self) -> None:
        self.instant = False
        self.calls: Counter[str] = Counter()
        self.last_put: Item = {}
        self._items: dict[tuple[str, str], Item] = {}

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        table = self

        def urlopen(_: HTTPConnectionPool, *positional: Any, **named: Any) -> urllib3.HTTPResponse:
            given = dict(zip(("method", "url", "body", "headers"), positional, strict=False)) | named
            return table.answer(given["headers"], given["body"], preload=named.get("preload_content", True))

        with mock.patch.object(HTTPConnectionPool, "urlopen", urlopen):
            yield

    def answer(self, headers: Mapping[str, Any], body: bytes, *, preload: bool) -> urllib3.HTTPResponse:
        operation = target_of(headers)
        self.calls[operation] += 1
        content = NOTHING
        if not (self.instant and operation == "PutItem"):
            content = json.dumps(self._answer_slowly(operation, json.loads(body))).encode()
        answered = {"content-type": "application/x-amz-json-1.0", "content-length": str(len(content))}
        return urllib3.HTTPResponse(io.BytesIO(content), answered, status=200, preload_content=preload)

    def _answer_slowly(self, operation: str, asked: Item) -> Item:
        match operation:
            case "PutItem":
                self.last_put = asked | {
                    "Item": {name: for_boto3(value) for name, value in asked["Item"].items()}
                }
                return self._put(asked["Item"])
            case "TransactWriteItems":
                for each in asked["TransactItems"]:
                    self._put(each["Put"]["Item"])
                return {}
            case "GetItem":
                found = self._items.get(place_of(asked["Key"]))
                return {"Item": found} if found else {}
            case "Query":
                return self._query(asked)
        raise NotImplementedError(f"{operation} is no part of an append")

    def _put(self, item: Item) -> Item:
        self._items[place_of(item)] = item
        return {}

    def _query(self, asked: Item) -> Item:
        """The partition's items in order; the sort key's bounds are ignored, which the tail does not mind."""
        partition = asked["ExpressionAttributeValues"][":pk"]["S"]
        places = sorted(place for place in self._items if place[0] == partition)
        if not asked.get("ScanIndexForward", True):
            places.reverse()
        items = [self._items[place] for place in places[: asked.get("Limit")]]
        return {"Items": items, "Count": len(items), "ScannedCount": len(items)}


def target_of(headers: Mapping[str, Any]) -> str:
    target = headers["X-Amz-Target"]
    text = target.decode() if isinstance(target, bytes) else str(target)
    return text.rpartition(".")[2]


def place_of(item: Item) -> tuple[str, str]:
    return item["pk"]["S"], item["sk"]["S"]


def for_boto3(value: Any) -> Any:
    """An attribute value with its binaries as bytes, however deep they lie."""
    if isinstance(value, list):
        return [for_boto3(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {BINARY}:
        return {BINARY: base64.b64decode(value[BINARY])}
    return {name: for_boto3(inner) for name, inner in value.items()}

"""A stand-in for DynamoDB inside botocore: it answers before anything is sent, so only CPU is measured.

It keeps what is put, so that a stream can be created and found; once `instant`, it answers a put with `{}`
and keeps nothing, which costs the same whoever asks.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse

Item = dict[str, Any]
NOTHING = b"{}"


class Raw(io.BytesIO):
    """What botocore expects of the transport: a body that can be read in pieces."""

    def stream(self) -> Iterator[bytes]:
        yield self.read()


class InstantTable:
    """Install with `session.register("before-send.dynamodb", table.answer)`; `calls` counts by operation."""

    def __init__(self) -> None:
        self.instant = False
        self.calls: Counter[str] = Counter()
        self.last_put: Item = {}
        self._items: dict[tuple[str, str], Item] = {}

    def answer(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        operation = target_of(request)
        self.calls[operation] += 1
        body = NOTHING
        if not (self.instant and operation == "PutItem"):
            body = json.dumps(self._answer_slowly(operation, json.loads(request.body))).encode()
        headers = {"content-type": "application/x-amz-json-1.0", "content-length": str(len(body))}
        return AWSResponse(request.url, 200, headers, Raw(body))

    def remember(self, params: Item, **_: Any) -> None:
        """For `provide-client-params.dynamodb.PutItem`: the arguments as the caller gave them."""
        self.last_put = dict(params)

    def _answer_slowly(self, operation: str, asked: Item) -> Item:
        match operation:
            case "PutItem":
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


def target_of(request: AWSPreparedRequest) -> str:
    target = request.headers["X-Amz-Target"]
    text = target.decode() if isinstance(target, bytes) else str(target)
    return text.rpartition(".")[2]


def place_of(item: Item) -> tuple[str, str]:
    return item["pk"]["S"], item["sk"]["S"]

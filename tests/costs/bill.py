"""The bill of storage calls: what DynamoDB counts for each, from the very bytes that are sent."""

from __future__ import annotations

import base64
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.costs import prices
from tests.support import Process, before

KILOBYTE = 1024


@dataclass(slots=True)
class Bill:
    calls: Counter[str] = field(default_factory=Counter)
    write_units: int = 0
    read_units: int = 0

    @property
    def storage_dollars(self) -> float:
        """Per million."""
        return (
            self.write_units * prices.WRITE_UNIT
            + self.read_units * prices.READ_UNIT
            + self.calls["PutObject"] * prices.S3_WRITE
            + self.calls["GetObject"] * prices.S3_READ
        )

    def count(self, operation: str, body: bytes, answer: bytes) -> None:
        self.calls[operation] += 1
        asked, answered = orjson.loads(body), orjson.loads(answer)
        match operation:
            case "PutItem":
                self.write_units += write_units(asked["Item"])
            case "UpdateItem" | "DeleteItem":
                self.write_units += 1
            case "TransactWriteItems":
                self.write_units += sum(2 * _units_of_part(part) for part in asked["TransactItems"])
            case "GetItem":
                self.read_units += read_units([answered["Item"]] if "Item" in answered else [])
            case "Query":
                self.read_units += read_units(answered["Items"])
            case _:
                raise NotImplementedError(operation)


def _units_of_part(part: dict[str, Any]) -> int:
    return write_units(part["Put"]["Item"]) if "Put" in part else 1


def write_units(item: dict[str, Any]) -> int:
    return math.ceil(item_bytes(item) / KILOBYTE)


def read_units(items: list[dict[str, Any]]) -> int:
    """Of a consistent read, by 4 KB; of nothing, one."""
    return max(1, math.ceil(sum(map(item_bytes, items)) / (4 * KILOBYTE)))


def item_bytes(item: dict[str, Any]) -> int:
    """As DynamoDB measures: names and values."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: dict[str, Any]) -> int:
    [(kind, inner)] = value.items()
    match kind:
        case "S":
            return len(inner.encode())
        case "B":
            return len(base64.b64decode(inner))
        case "N":
            return len(inner.lstrip("-0").rstrip("0")) // 2 + 2
        case "BOOL" | "NULL":
            return 1
        case "L":
            return 3 + sum(1 + _value_bytes(each) for each in inner)
        case "M":
            return 3 + sum(1 + len(name.encode()) + _value_bytes(each) for name, each in inner.items())
    raise NotImplementedError(kind)


def open_bill(process: Process) -> Bill:
    """From now on. S3 is counted as it is called."""
    bill, send = Bill(), process.dynamodb.send

    def billed(operation: str, body: bytes) -> tuple[int, bytes]:
        status, answer = send(operation, body)
        if status == 200:
            bill.count(operation, body, answer)
        return status, answer

    def count_s3(event_name: str, **_: Any) -> None:
        bill.calls[event_name.rpartition(".")[2]] += 1

    process.dynamodb.send = billed
    before(process.objects, lambda operation: bill.calls.update([operation]))
    process.s3.meta.events.register("before-send", count_s3)
    return bill

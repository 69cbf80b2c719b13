"""The bill of storage calls: what DynamoDB counts for each, from the very bytes that are sent."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson

from benchmarks import prices
from tests.stack.dynamodb import item_size
from tests.support import Process, before


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
            + (self.calls["GetObject"] + self.calls["GetRange"]) * prices.S3_READ
        )

    def count(self, operation: str, body: bytes, answer: bytes) -> None:
        self.calls[operation] += 1
        asked, answered = orjson.loads(body), orjson.loads(answer)
        match operation:
            case "PutItem":
                self.write_units += write_units(asked["Item"])
            case "TransactWriteItems":
                parts = asked["TransactItems"]
                self.write_units += sum(
                    2 * write_units(part.get("Put", {}).get("Item", {})) for part in parts
                )
            case "BatchWriteItem":
                self.write_units += sum(map(len, asked["RequestItems"].values()))
            case "DeleteItem":
                self.write_units += 1
            case "GetItem":
                self.read_units += read_units([answered["Item"]] if "Item" in answered else [])
            case "BatchGetItem":  # Each item is rounded by itself.
                found = [[item] for items in answered["Responses"].values() for item in items]
                self.read_units += sum(map(read_units, found))
            case "Query":
                self.read_units += read_units(answered["Items"])
            case _:
                raise NotImplementedError(operation)


def write_units(item: dict[str, Any]) -> int:
    return max(1, math.ceil(item_size(item) / 1024))


def read_units(items: list[dict[str, Any]]) -> int:
    """Of a consistent read, by 4 KB; of nothing, one."""
    return max(1, math.ceil(sum(map(item_size, items)) / 4096))


def open_bill(process: Process) -> Bill:
    """From now on. S3 is counted as it is called."""
    bill, send = Bill(), process.dynamodb.send

    def billed(operation: str, body: bytes) -> tuple[int, bytes]:
        status, answer = send(operation, body)
        if status == 200:
            bill.count(operation, body, answer)
        return status, answer

    process.dynamodb.send = billed
    before(process.objects, lambda operation: bill.calls.update([operation]))
    return bill

"""What DynamoDB leaves over of a BatchWriteItem is sent again after a pause, and not for ever."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tidemark.aws.dynamodb import DynamoDB
from tidemark.log.table import Table
from tidemark.protocol.errors import Busy

KEYS: list[Any] = [{"pk": {"S": "log/inc"}, "sk": {"S": str(number)}} for number in range(25)]


class LeavesOver:
    """A table that deletes `at_once` items of each call and leaves the others over."""

    def __init__(self, at_once: int) -> None:
        self.deleted: list[Any] = []
        self.pauses: list[float] = []
        self.calls = 0
        self._at_once = at_once
        dynamodb = DynamoDB(self._send)
        dynamodb.sleep, dynamodb.now = self.pauses.append, lambda: 0.0
        self.table = Table(dynamodb, "table")

    def _send(self, operation: str, body: bytes) -> tuple[int, bytes]:
        assert operation == "BatchWriteItem"
        self.calls += 1
        assert self.calls <= 100, "it is sent again without end"
        requests = orjson.loads(body)["RequestItems"]["table"]
        self.deleted += [request["DeleteRequest"]["Key"] for request in requests[: self._at_once]]
        left = requests[self._at_once :]
        return 200, orjson.dumps({"UnprocessedItems": {"table": left} if left else {}})


def test_items_that_are_left_over_are_deleted_after_a_pause() -> None:
    """Each call asks for the rest alone, and none follows at once."""
    leaves = LeavesOver(at_once=10)
    leaves.table.delete_many(KEYS)
    assert leaves.deleted == KEYS
    assert (leaves.calls, len(leaves.pauses)) == (3, 2)


@pytest.mark.parametrize("at_once", [0, 1])
def test_a_table_that_keeps_leaving_items_over_is_busy(at_once: int) -> None:
    """A throttled table gets six calls with longer and longer pauses; the caller comes again later."""
    leaves = LeavesOver(at_once)
    with pytest.raises(Busy):
        leaves.table.delete_many(KEYS)
    assert (leaves.calls, len(leaves.pauses)) == (6, 5)
    assert all(0 <= pause <= 0.025 * 2**failed for failed, pause in enumerate(leaves.pauses, start=1))

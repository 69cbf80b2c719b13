"""Items that BatchWriteItem and BatchGetItem return as unprocessed are sent again after a pause, a limited
number of times."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tidemark.aws.dynamodb import DynamoDB
from tidemark.log.dynamodb import DynamoDBTable
from tidemark.protocol.errors import Busy

KEYS: list[Any] = [{"pk": {"S": "log/inc"}, "sk": {"S": str(number)}} for number in range(25)]


class LeavesOver:
    """A table that deletes or reads `at_once` items of each call and returns the others as unprocessed."""

    def __init__(self, at_once: int) -> None:
        self.deleted: list[Any] = []
        self.pauses: list[float] = []
        self.calls = 0
        self._at_once = at_once
        dynamodb = DynamoDB(self._send)
        dynamodb.sleep, dynamodb.now = self.pauses.append, lambda: 0.0
        self.table = DynamoDBTable(dynamodb, "table")

    def _send(self, operation: str, body: bytes) -> tuple[int, bytes]:
        self.calls += 1
        assert self.calls <= 100, "it is sent again without end"
        if operation == "BatchGetItem":
            asked = orjson.loads(body)["RequestItems"]["table"]
            assert asked.keys() == {
                "Keys",
                "ConsistentRead",
                "ProjectionExpression",
                "ExpressionAttributeNames",
            }
            left = {"table": asked | {"Keys": asked["Keys"][self._at_once :]}}
            answer = {"Responses": {"table": asked["Keys"][: self._at_once]}}
            return 200, orjson.dumps(
                answer | {"UnprocessedKeys": left if asked["Keys"][self._at_once :] else {}}
            )
        assert operation == "BatchWriteItem"
        requests = orjson.loads(body)["RequestItems"]["table"]
        self.deleted += [request["DeleteRequest"]["Key"] for request in requests[: self._at_once]]
        left = requests[self._at_once :]
        return 200, orjson.dumps({"UnprocessedItems": {"table": left} if left else {}})


def test_unprocessed_items_are_deleted_after_a_pause() -> None:
    """Each call sends only the rest, and there is a pause before each."""
    leaves = LeavesOver(at_once=10)
    leaves.table.delete_many(KEYS)
    assert leaves.deleted == KEYS
    assert (leaves.calls, len(leaves.pauses)) == (3, 2)


@pytest.mark.parametrize("at_once", [0, 1])
def test_a_table_that_keeps_returning_unprocessed_items_raises_busy(at_once: int) -> None:
    """It gets six calls with longer and longer pauses; the caller tries again later."""
    leaves = LeavesOver(at_once)
    with pytest.raises(Busy):
        leaves.table.delete_many(KEYS)
    assert (leaves.calls, len(leaves.pauses)) == (6, 5)
    assert all(0 <= pause <= 0.025 * 2**failed for failed, pause in enumerate(leaves.pauses, start=1))


def test_unprocessed_keys_are_asked_for_again_after_a_pause() -> None:
    leaves = LeavesOver(at_once=10)
    assert leaves.table.get_many(KEYS, ("pk", "sk")) == KEYS
    assert (leaves.calls, len(leaves.pauses)) == (3, 2)


def test_a_table_that_keeps_returning_unprocessed_keys_raises_busy() -> None:
    """What the calls before have found is not returned as if it were all."""
    leaves = LeavesOver(at_once=1)
    with pytest.raises(Busy):
        leaves.table.get_many(KEYS, ("pk", "sk"))
    assert (leaves.calls, len(leaves.pauses)) == (6, 5)

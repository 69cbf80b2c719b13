"""Items that BatchWriteItem and BatchGetItem return as unprocessed are sent again after a pause, a limited
number of times."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tidemark.aws.dynamodb import DynamoDB
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.protocol.errors import Busy

pytestmark = pytest.mark.each_engine

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
        asked = orjson.loads(body)["RequestItems"]["table"]
        if operation == "BatchGetItem":
            named = {"ConsistentRead", "ProjectionExpression", "ExpressionAttributeNames"}
            assert asked.keys() - {"Keys"} == named
            now, later = asked["Keys"][: self._at_once], asked["Keys"][self._at_once :]
            left = {"table": asked | {"Keys": later}} if later else {}
            return 200, orjson.dumps({"Responses": {"table": now}, "UnprocessedKeys": left})
        assert operation == "BatchWriteItem"
        self.deleted += [request["DeleteRequest"]["Key"] for request in asked[: self._at_once]]
        left = asked[self._at_once :]
        return 200, orjson.dumps({"UnprocessedItems": {"table": left} if left else {}})


def delete(leaves: LeavesOver) -> list[Any]:
    leaves.table.delete_many(KEYS)
    return leaves.deleted


def read(leaves: LeavesOver) -> list[Any]:
    return leaves.table.get_many(KEYS, ("pk", "sk"))


@pytest.mark.parametrize("use", [delete, read])
def test_unprocessed_items_are_sent_again_after_a_pause(use: Callable[[LeavesOver], list[Any]]) -> None:
    leaves = LeavesOver(at_once=10)
    assert use(leaves) == KEYS
    assert (leaves.calls, len(leaves.pauses)) == (3, 2)


@pytest.mark.parametrize("use", [delete, read])
@pytest.mark.parametrize("at_once", [0, 1])
def test_a_table_that_leaves_items_raises_busy(at_once: int, use: Callable[[LeavesOver], list[Any]]) -> None:
    """It gets six calls with longer and longer pauses; the caller tries again later. What the calls before
    have found is not returned as if it were all."""
    leaves = LeavesOver(at_once)
    with pytest.raises(Busy):
        use(leaves)
    assert (leaves.calls, len(leaves.pauses)) == (6, 5)
    assert all(0 <= pause <= 0.025 * 2**failed for failed, pause in enumerate(leaves.pauses, start=1))

"""DynamoDB's protocol on the engine: what no other engine here shows, and what it refuses. `test_table.py`
holds its answers against those of moto and ministack."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.simulation.table import SimulatedTable
from tests.support import Clock
from tidemark.engine.dynamodb import TOKEN_MS


def put(sk: str) -> dict[str, Any]:
    return {"Put": {"TableName": "t", "Item": {"pk": {"S": "p"}, "sk": {"S": sk}}}}


def test_a_token_is_remembered_for_ten_minutes() -> None:
    """AWS documents ten minutes; from then on the same request is a new one."""
    clock = Clock(0)
    table = SimulatedTable(clock)
    write = orjson.dumps({"TransactItems": [put("a")], "ClientRequestToken": "once"})
    delete = orjson.dumps({"TableName": "t", "Key": {"pk": {"S": "p"}, "sk": {"S": "a"}}})
    for clock.now_ms, expected in ((0, 1), (TOKEN_MS - 1, 0), (TOKEN_MS, 1)):
        assert table.send("TransactWriteItems", write) == (200, b"{}")
        assert len(list(table.items())) == expected
        status, body = table.send("TransactWriteItems", write.replace(b'"a"', b'"b"'))
        assert (status, b"IdempotentParameterMismatchException" in body) == (400, True)
        table.send("DeleteItem", delete)


KEY: dict[str, Any] = {"pk": {"S": "p"}, "sk": {"S": "a"}}
VALUES: dict[str, Any] = {":n": {"N": "1"}, ":s": {"S": "s"}, ":p": {"S": "p"}, ":b": {"B": "eDs="}}


@pytest.mark.parametrize(
    ("operation", "arguments", "said"),
    [
        *(
            ("PutItem", {"Item": KEY, "ConditionExpression": text}, f"the expression: {text}")
            for text in ("size(b) > :n", "a = :n XOR b = :n", "a =", "(a = :n", "a = :n)", "a ! :n", "a = :b")
        ),
        *(
            ("UpdateItem", {"Key": KEY, "UpdateExpression": text}, f"the expression: {text}")
            for text in ("DELETE s :s", "SET a :n", "REMOVE a", "SET a = b + :n", "")
        ),
        *(
            ("Query", {"KeyConditionExpression": text}, text)
            for text in ("sk = :s", "pk = :p AND s = :s", "pk = :p OR sk = :s", "pk > :p")
        ),
        ("Query", {"KeyConditionExpression": "pk = :p", "IndexName": "i"}, "of Query: IndexName"),
        (
            "UpdateItem",
            {"Key": KEY, "UpdateExpression": "SET a = :n", "ReturnValues": "ALL_NEW"},
            "ReturnValues",
        ),
        ("TransactWriteItems", {"TransactItems": [{"Delete": {"Key": KEY}}]}, "Delete in a transaction"),
        ("ExecuteStatement", {"Statement": "SELECT 1"}, "the operation ExecuteStatement"),
        ("PutItem", {"Item": {"pk": {"S": "p"}, "sk": {"N": "1"}}}, "does not match the schema"),
        ("GetItem", {"Key": {"pk": {"S": "p"}}}, "does not match the schema"),
        ("PutItem", {"Item": KEY | {"b": {"S": "x" * 409_600}}}, "Item size has exceeded"),
    ],
)
def test_what_is_not_known_is_refused_by_name(operation: str, arguments: dict[str, Any], said: str) -> None:
    table = SimulatedTable(Clock(0))
    values = {} if operation == "ExecuteStatement" else {"ExpressionAttributeValues": VALUES}
    status, body = table.send(operation, orjson.dumps(arguments | values))
    answer = orjson.loads(body)
    assert (status, answer["__type"].rpartition("#")[2]) == (400, "ValidationException")
    assert said in answer["message"]
    assert list(table.items()) == []


def test_a_table_is_paged_through_forward_and_backward() -> None:
    table = SimulatedTable(Clock(0))
    names = ["a", "ab", "b", "c", "é"]
    for sk in names:
        table.send("PutItem", orjson.dumps({"Item": {"pk": {"S": "p"}, "sk": {"S": sk}}}))
    query = {"KeyConditionExpression": "pk = :p", "ExpressionAttributeValues": {":p": {"S": "p"}}, "Limit": 2}
    asked: list[tuple[str, dict[str, Any], list[str]]] = [
        ("Query", query, names),
        ("Query", query | {"ScanIndexForward": False}, names[::-1]),
        ("Scan", {"Limit": 2}, names),
    ]
    for operation, arguments, expected in asked:
        found: list[str] = []
        page: dict[str, Any] = {"LastEvaluatedKey": None}
        while "LastEvaluatedKey" in page:
            last = page["LastEvaluatedKey"]
            position = {"ExclusiveStartKey": last} if last else {}
            page = orjson.loads(table.send(operation, orjson.dumps(arguments | position))[1])
            found += [item["sk"]["S"] for item in page["Items"]]
        assert found == expected
    prefix = {"KeyConditionExpression": "pk = :p AND begins_with(sk, :a)"}
    values = {"ExpressionAttributeValues": {":p": {"S": "p"}, ":a": {"S": "a"}}}
    page = orjson.loads(table.send("Query", orjson.dumps(prefix | values))[1])
    assert [item["sk"]["S"] for item in page["Items"]] == ["a", "ab"]

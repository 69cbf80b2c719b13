"""DynamoDB's protocol on the engine: what no other engine here shows, and what it refuses. `test_table.py`
holds its answers against those of moto and ministack."""

from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
import urllib3

from tests.simulation.table import SimulatedTable
from tests.stack.dynamodb import TOKEN_MS
from tests.stack.engines import LocalServices
from tests.support import Clock, make_world


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
            for text in ("pk = :p", "sk = :s", "pk = :p AND s = :s", "pk = :p OR sk = :s")
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


def test_a_table_is_scanned_page_by_page() -> None:
    table = SimulatedTable(Clock(0))
    names = ["a", "ab", "b", "c", "é"]
    for sk in names:
        table.send("PutItem", orjson.dumps({"Item": {"pk": {"S": "p"}, "sk": {"S": sk}}}))
    found: list[str] = []
    page: dict[str, Any] = {"LastEvaluatedKey": None}
    while "LastEvaluatedKey" in page:
        last = page["LastEvaluatedKey"]
        position = {"ExclusiveStartKey": last} if last else {}
        page = orjson.loads(table.send("Scan", orjson.dumps({"Limit": 2} | position))[1])
        found += [item["sk"]["S"] for item in page["Items"]]
    assert found == names


@pytest.mark.parametrize(
    ("operation", "arguments", "headers", "said"),
    [
        ("Scan", {}, {"Host": "evil.example"}, "loopback names alone"),  # DNS rebinding.
        ("Scan", {"TableName": "another"}, {}, "Requested resource not found: Table: another"),
        ("CreateTable", {"KeySchema": []}, {}, "Table already exists"),
        ("CreateTable", {"TableName": "t", "KeySchema": []}, {}, "tables by pk and sk alone"),
        ("TransactWriteItems", {"TransactItems": [put("a")]}, {}, "takes a request for one table"),
        ("PutItem", {}, {}, "the request cannot be read"),
    ],
)
def test_the_port_refuses_what_it_does_not_serve(
    services: LocalServices, operation: str, arguments: dict[str, Any], headers: dict[str, str], said: str
) -> None:
    world = make_world(services)
    asked = orjson.dumps({"TableName": world.table_name} | arguments)
    target = {"X-Amz-Target": f"DynamoDB_20120810.{operation}", "Host": urlsplit(world.port).netloc}
    answer = urllib3.request("POST", world.port, body=asked, headers=target | headers, retries=False)
    assert (answer.status, said in answer.json()["message"]) == (400, True), answer.data

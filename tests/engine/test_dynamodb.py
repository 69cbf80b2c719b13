"""DynamoDB's protocol on the engine: it answers as moto does, which others made, and refuses what it does not
know.

The same requests go to both, one after the other: those that whole runs of the simulation make, faults and
late copies included. `test_table.py` has random ones.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tests.available import require_engine
from tests.simulation import world as simulated_world
from tests.simulation.run import run_seed
from tests.simulation.table import SimulatedTable
from tests.support import Clock
from tidemark.aws.account import Account
from tidemark.aws.dynamodb import connect_dynamodb
from tidemark.engine.dynamodb import TOKEN_MS
from tidemark.local.engines import LocalServices

SEEDS = (11, 12, 13, 14)


class Mirror(SimulatedTable):
    """Sends every request to moto as well, and compares the answers."""

    def __init__(self, now_ms: Any, table_name: str) -> None:
        super().__init__(now_ms)
        self._real = connect_dynamodb(Account())
        self._table_name = table_name
        self.compared: Counter[str] = Counter()

    def _is_repeated(self, token: str, body: bytes) -> bool:
        """moto remembers no tokens."""
        self._remembers = token in self._tokens
        return super()._is_repeated(token, body)

    def send(self, operation: str, body: bytes) -> tuple[int, bytes]:
        self._remembers = False
        answer = super().send(operation, body)
        if self._remembers:
            return answer
        real = self._real.send(operation, body.replace(b'"simulated"', b'"%s"' % self._table_name.encode()))
        here, there = comparable(answer), comparable(real)
        # Where a page ends at the limit, DynamoDB says that there may be more; moto looks whether there is.
        here["more"] = there["more"] = here["more"] or there["more"]
        assert here == there, f"{operation} {body.decode()}\nembedded: {here}\nmoto: {there}"
        self.compared[f"{operation} {here['code'] or here['status']}"] += 1
        return answer


def comparable(answer: tuple[int, bytes]) -> dict[str, Any]:
    """What callers look at: no wording, and no order of attributes."""
    status, parsed = answer[0], orjson.loads(answer[1] or b"{}")
    reasons = [(each.get("Code"), each.get("Item")) for each in parsed.get("CancellationReasons", [])]
    code = str(parsed.get("__type", "")).rpartition("#")[2]
    wanted = {name: parsed.get(name) for name in ("Item", "Items", "UnprocessedItems", "Count")}
    read = [item for items in parsed.get("Responses", {}).values() for item in items]
    return {
        # An engine names an item's attributes in any order, so they are sorted before the items are.
        "read": sorted(read, key=lambda item: orjson.dumps(item, option=orjson.OPT_SORT_KEYS)),
        "status": status,
        "code": code,
        "reasons": reasons,
        "more": bool(parsed.get("LastEvaluatedKey")),
    } | {name: found or None for name, found in wanted.items()}


MakeMirror = Callable[[], Mirror]


@pytest.fixture
def make_mirror(start_engines: Callable[[str], LocalServices], monkeypatch: pytest.MonkeyPatch) -> MakeMirror:
    require_engine("moto")
    services = start_engines("moto")
    for variable, value in services.environment.items():
        monkeypatch.setenv(variable, value)

    def make() -> Mirror:
        name = f"mirror-{uuid.uuid4().hex[:12]}"
        services.create_table(name)
        return Mirror(lambda: 0, name)

    return make


@pytest.mark.parametrize("seed", SEEDS)
def test_whole_runs_are_answered_alike(
    make_mirror: MakeMirror, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    mirrors: list[Mirror] = []

    def mirrored(_now_ms: Any) -> Mirror:
        mirrors.append(make_mirror())
        return mirrors[-1]

    monkeypatch.setattr(simulated_world, "SimulatedTable", mirrored)
    run_seed(seed)
    [mirror] = mirrors
    assert mirror.compared.total() > 50
    assert mirror.compared["Query 200"] > 5


# --- what no engine here shows ---------------------------------------------------------


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

"""The simulated table answers as a real engine does, or what is played on it proves nothing.

The same requests go to both, one after the other: random ones over few keys, and those that whole runs of the
simulation make, faults and late copies included.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from typing import Any

import orjson
import pytest

from tests.simulation import world as simulated_world
from tests.simulation.expressions import UnknownExpression, parse_condition, parse_update
from tests.simulation.run import run_seed
from tests.simulation.table import TOKEN_MS, SimulatedTable
from tests.support import Clock
from tidemark.aws.account import Account
from tidemark.aws.dynamodb import connect_dynamodb
from tidemark.local.engines import LocalServices

REQUESTS = 400
SEEDS = (11, 12, 13, 14)


class Mirror(SimulatedTable):
    """Sends every request to the real engine as well, and compares the answers."""

    def __init__(self, now_ms: Any, table_name: str) -> None:
        super().__init__(now_ms)
        self._real = connect_dynamodb(Account())
        self._table_name = table_name
        self.compared: Counter[str] = Counter()

    def send(self, operation: str, body: bytes) -> tuple[int, bytes]:
        answer = super().send(operation, body)
        real = self._real.send(operation, body.replace(b'"simulated"', b'"%s"' % self._table_name.encode()))
        here, there = comparable(answer), comparable(real)
        assert here == there, f"{operation} {body.decode()}\nsimulated: {here}\nreal: {there}"
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
        "read": sorted(read, key=orjson.dumps),
        "status": status,
        "code": code,
        "reasons": reasons,
        "more": bool(parsed.get("LastEvaluatedKey")),
    } | {name: found or None for name, found in wanted.items()}


def a_mirror(services: LocalServices) -> Mirror:
    name = f"mirror-{uuid.uuid4().hex[:12]}"
    services.create_table(name)
    return Mirror(lambda: 0, name)


def test_a_batch_of_reads_is_answered_as_the_engine_answers_it(services: LocalServices) -> None:
    mirror = a_mirror(services)
    keys = [{"pk": {"S": "p"}, "sk": {"S": sk}} for sk in "abc"]
    for key in keys[:2]:
        put = {"TableName": "simulated", "Item": {"n": {"N": "1"}, "m": {"S": "x"}} | key}
        mirror.send("PutItem", orjson.dumps(put))
    some = {"ProjectionExpression": "#n", "ExpressionAttributeNames": {"#n": "n"}}
    for asked, found in ((keys, 2), (keys[1:], 1), (keys[2:], 0)):
        for more in ({"ConsistentRead": True} | some, {}):
            request = {"RequestItems": {"simulated": {"Keys": asked} | more}}
            status, body = mirror.send("BatchGetItem", orjson.dumps(request))
            assert (status, len(orjson.loads(body)["Responses"]["simulated"])) == (200, found)


# --- random requests ------------------------------------------------------------------

CONDITIONS = [
    "attribute_not_exists(sk)",
    "attribute_exists(sk)",
    "n = :n",
    "n <> :n",
    "n > :n",
    "n >= :n AND attribute_exists(s)",
    "inc = :s",
    "inc = :s AND (attribute_not_exists(rc) OR rc = :n)",
    "inc = :s AND attribute_not_exists(dl) AND s = :s",
    "attribute_exists(sk) AND n = :n",
    "inc = :s AND rc > :n",
    "NOT inc = :s OR attribute_exists(dl)",
    "n IN (:n, :s)",
    "n BETWEEN :n AND :n",
    "begins_with(s, :s)",
    "begins_with(sk, :s) OR rc < :n",
    "#dl = :n",
]
UPDATES = [
    "ADD rc :n",
    "SET #dl = :n",
    "SET s = :s, n = :n",
    "SET n = if_not_exists(n, :n) + :n",
    "REMOVE s, dl",
]


class Requests:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._tokens = 0
        #: The engine remembers tokens whatever the table.
        self._run = uuid.uuid4().hex[:8]
        #: Of transactions that were carried out; what becomes of the others' tokens is nowhere promised.
        self.used_tokens: list[str] = []

    def next(self) -> tuple[str, dict[str, Any]]:
        operations = {
            "GetItem": lambda: {"Key": self._key(), "ConsistentRead": True},
            "PutItem": lambda: {"Item": self._item()} | self._condition(),
            "DeleteItem": lambda: {"Key": self._key()} | self._condition(),
            "UpdateItem": self._update,
            "TransactWriteItems": self._transaction,
            "BatchWriteItem": self._batch,
            "Query": self._query,
        }
        operation = self._chance.choices(list(operations), (2, 5, 2, 4, 5, 1, 4))[0]
        arguments: dict[str, Any] = operations[operation]()
        is_many = operation in {"TransactWriteItems", "BatchWriteItem"}
        return operation, arguments if is_many else {"TableName": "simulated"} | arguments

    def _key(self) -> dict[str, Any]:
        sk = self._chance.choice(["0", "00", "1", "1.", "é", "~", "stream/a", "stream/b"])
        return {"pk": {"S": self._chance.choice(["p", "q"])}, "sk": {"S": sk}}

    def _item(self) -> dict[str, Any]:
        more = {
            "n": {"N": str(self._chance.randrange(-1, 3))},
            "s": {"S": self._chance.choice(["a", "ab", "é"])},
            "inc": {"S": self._chance.choice(["a", "b"])},
            "rc": {"N": str(self._chance.randrange(3))},
            "dl": {"N": "1"},
            "b": {"B": "eDs="},
            "x": {"BOOL": True},
        }
        return self._key() | {name: value for name, value in more.items() if self._chance.random() < 0.5}

    def _values(self, *expressions: str) -> dict[str, Any]:
        """Values and names that the expressions use, and no others: DynamoDB refuses those."""
        text = " ".join(expressions)
        values = {
            ":n": {"N": str(self._chance.randrange(-1, 3))},
            ":s": {"S": self._chance.choice(["a", "b"])},
        }
        used = {name: value for name, value in values.items() if name in text}
        arguments: dict[str, Any] = {"ExpressionAttributeValues": used} if used else {}
        return arguments | ({"ExpressionAttributeNames": {"#dl": "dl"}} if "#dl" in text else {})

    def _condition(self, update: str = "", share: float = 0.7) -> dict[str, Any]:
        if self._chance.random() > share:
            return self._values(update)
        condition = self._chance.choice(CONDITIONS)
        return {
            "ConditionExpression": condition,
            "ReturnValuesOnConditionCheckFailure": self._chance.choice(["ALL_OLD", "NONE"]),
        } | self._values(condition, update)

    def _update(self) -> dict[str, Any]:
        update = self._chance.choice(UPDATES)
        return {"Key": self._key(), "UpdateExpression": update} | self._condition(update)

    def _transaction(self) -> dict[str, Any]:
        writes = []
        for _ in range(self._chance.randint(1, 4)):
            kind = self._chance.choice(["Put", "Delete", "Update", "ConditionCheck"])
            if kind == "Update":
                write = self._update()
            elif kind == "Put":
                write = {"Item": self._item()} | self._condition()
            else:
                write = {"Key": self._key()} | self._condition(share=1 if kind == "ConditionCheck" else 0.7)
            writes.append({kind: {"TableName": "simulated"} | write})
        lot = self._chance.random()
        if lot < 0.3:
            return {"TransactItems": writes}
        self._tokens += 1
        reused = self._chance.choice(self.used_tokens) if self.used_tokens and lot < 0.4 else None
        return {"TransactItems": writes, "ClientRequestToken": reused or f"{self._run}-{self._tokens}"}

    def _batch(self) -> dict[str, Any]:
        keys = {(key["pk"]["S"], key["sk"]["S"]): key for key in (self._key() for _ in range(4))}
        requests = [
            {"DeleteRequest": {"Key": key}}
            if self._chance.random() < 0.5
            else {"PutRequest": {"Item": self._item() | key}}
            for key in keys.values()
        ]
        return {"RequestItems": {"simulated": requests}}

    def _query(self) -> dict[str, Any]:
        low, high = self._chance.choice([("0", "~"), ("0", "1"), ("00", "stream/a"), (" ", "é"), ("1", "1.")])
        arguments = {
            "KeyConditionExpression": "pk = :pk AND sk BETWEEN :low AND :high",
            "ExpressionAttributeValues": {":pk": {"S": "p"}, ":low": {"S": low}, ":high": {"S": high}},
            "ConsistentRead": True,
            "ScanIndexForward": self._chance.random() < 0.5,
        }
        if self._chance.random() < 0.5:
            arguments["Limit"] = self._chance.randint(1, 4)
        if self._chance.random() < 0.5:
            arguments |= {
                "ProjectionExpression": "#sk,#n",
                "ExpressionAttributeNames": {"#sk": "sk", "#n": "n"},
            }
        return arguments


@pytest.mark.parametrize("seed", [1, 2])
def test_random_requests_are_answered_as_by_the_real_engine(services: LocalServices, seed: int) -> None:
    chance = random.Random(seed)
    mirror, requests = a_mirror(services), Requests(chance)
    sent: list[tuple[str, dict[str, Any]]] = []
    for _ in range(REQUESTS):
        # Now and then an earlier request once more: of a transaction its token makes nothing.
        again = bool(sent) and chance.random() < 0.1
        operation, arguments = chance.choice(sent) if again else requests.next()
        sent.append((operation, arguments))
        status, _ = mirror.send(operation, orjson.dumps(arguments))
        if status == 200 and "ClientRequestToken" in arguments:
            requests.used_tokens.append(arguments["ClientRequestToken"])
    for answered in (
        "PutItem 200",
        "PutItem ConditionalCheckFailedException",
        "UpdateItem ConditionalCheckFailedException",
        "DeleteItem ConditionalCheckFailedException",
        "TransactWriteItems 200",
        "TransactWriteItems TransactionCanceledException",
        "TransactWriteItems ValidationException",
        "TransactWriteItems IdempotentParameterMismatchException",
    ):
        assert mirror.compared[answered] > 0, f"{answered} is not compared: {mirror.compared}"


# --- requests of the use cases ---------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_whole_runs_are_answered_as_by_the_real_engine(
    services: LocalServices, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    mirrors: list[Mirror] = []

    def mirrored(_now_ms: Any) -> Mirror:
        mirrors.append(a_mirror(services))
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
        table.send("DeleteItem", delete)


@pytest.mark.parametrize("text", ["size(b) > :n", "a = :n XOR b = :n", "a =", "(a = :n", "a = :n)", "a ! :n"])
def test_a_condition_that_is_not_known_is_an_error(text: str) -> None:
    with pytest.raises(UnknownExpression):
        parse_condition(text)


@pytest.mark.parametrize("text", ["DELETE s :s", "SET a :n", "REMOVE"])
def test_an_update_that_is_not_known_is_an_error(text: str) -> None:
    with pytest.raises(UnknownExpression):
        parse_update(text)

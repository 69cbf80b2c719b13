"""A DynamoDB table in memory, at the seam where requests leave the process: `send(operation, JSON)`.

It knows the operations that `tidemark.log.table` uses, each carried out at once and alone, and answers in
DynamoDB's own words. A query's page is never cut at a megabyte: keep the items small. `test_table.py` plays
random requests on it and on a real engine: the answers are the same."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson

from tests.simulation.expressions import Item, parse_condition, parse_update, project

Answer = tuple[int, bytes]
Arguments = dict[str, Any]

#: How long DynamoDB remembers the token of a transaction that it has carried out.
TOKEN_MS: Final = 10 * 60 * 1000
_MAX_TRANSACTION: Final = 100
_MAX_BATCH: Final = 25
_MAX_GETS: Final = 100
_FAILED: Final = "The conditional request failed"


class Refusal(Exception):
    def __init__(self, code: str, message: str, **more: Any) -> None:
        super().__init__(f"{code}: {message}")
        self.answer = (
            400,
            orjson.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message} | more),
        )


class SimulatedTable:
    """One table with the keys `pk` and `sk`. `now_ms` is what its tokens age by."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._items: dict[str, dict[str, Item]] = {}
        self._sorted: dict[str, list[str]] = {}
        self._tokens: dict[str, tuple[int, bytes]] = {}

    def send(self, operation: str, body: bytes) -> Answer:
        arguments: Arguments = orjson.loads(body)
        try:
            return 200, orjson.dumps(_OPERATIONS[operation](self, arguments))
        except Refusal as refusal:
            return refusal.answer

    def items(self) -> Iterator[Item]:
        for partition in self._items.values():
            yield from partition.values()

    def remove_expired(self) -> None:
        """What DynamoDB does some time after the `ttl` of an item, in seconds, has passed."""
        for item in list(self.items()):
            if "ttl" in item and int(item["ttl"]["N"]) * 1000 < self._now_ms():
                self._drop(item)

    # --- one item ---

    def find(self, key: Item) -> Item | None:
        return self._items.get(key["pk"]["S"], {}).get(key["sk"]["S"])

    def _store(self, item: Item) -> None:
        pk, sk = item["pk"]["S"], item["sk"]["S"]
        partition = self._items.setdefault(pk, {})
        if sk not in partition:
            insort(self._sorted.setdefault(pk, []), sk, key=str.encode)
        partition[sk] = item

    def _drop(self, key: Item) -> None:
        pk, sk = key["pk"]["S"], key["sk"]["S"]
        partition = self._items.get(pk, {})
        if partition.pop(sk, None) is not None:
            self._sorted[pk].remove(sk)
        if not partition:
            self._items.pop(pk, None)
            self._sorted.pop(pk, None)

    def _get(self, arguments: Arguments) -> dict[str, Any]:
        item = self.find(arguments["Key"])
        if item is None:
            return {}
        names = arguments.get("ExpressionAttributeNames", {})
        return {"Item": project(item, arguments.get("ProjectionExpression"), names)}

    def _put(self, arguments: Arguments) -> dict[str, Any]:
        self._check(arguments, arguments["Item"])
        self._store(arguments["Item"])
        return {}

    def _update(self, arguments: Arguments) -> dict[str, Any]:
        self._check(arguments, arguments["Key"])
        self._store(self._updated(arguments))
        return {}

    def _delete(self, arguments: Arguments) -> dict[str, Any]:
        self._check(arguments, arguments["Key"])
        self._drop(arguments["Key"])
        return {}

    def _holds(self, arguments: Arguments, key: Item) -> bool:
        if "ConditionExpression" not in arguments:
            return True
        check = parse_condition(arguments["ConditionExpression"])
        values = arguments.get("ExpressionAttributeValues", {})
        return check(self.find(key) or {}, values, arguments.get("ExpressionAttributeNames", {}))

    def _check(self, arguments: Arguments, key: Item) -> None:
        if not self._holds(arguments, key):
            raise Refusal("ConditionalCheckFailedException", _FAILED, **self._existing(arguments, key))

    def _existing(self, arguments: Arguments, key: Item) -> dict[str, Any]:
        item = self.find(key)
        wanted = arguments.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
        return {"Item": item} if wanted and item is not None else {}

    def _updated(self, arguments: Arguments) -> Item:
        old = self.find(arguments["Key"]) or arguments["Key"]
        new = dict(old)
        values = arguments.get("ExpressionAttributeValues", {})
        for change in parse_update(arguments["UpdateExpression"]):
            change(old, new, values, arguments.get("ExpressionAttributeNames", {}))
        return new

    # --- several items ---

    def _batch_get(self, arguments: Arguments) -> dict[str, Any]:
        [(table, asked)] = arguments["RequestItems"].items()
        if not 0 < len(asked["Keys"]) <= _MAX_GETS:
            raise Refusal("ValidationException", "Too many items requested for the BatchGetItem call")
        names = asked.get("ExpressionAttributeNames", {})
        found = [item for key in asked["Keys"] if (item := self.find(key)) is not None]
        projected = [project(item, asked.get("ProjectionExpression"), names) for item in found]
        return {"Responses": {table: projected}, "UnprocessedKeys": {}}

    def _batch_write(self, arguments: Arguments) -> dict[str, Any]:
        [requests] = arguments["RequestItems"].values()
        if not 0 < len(requests) <= _MAX_BATCH:
            raise Refusal("ValidationException", "Too many items requested for the BatchWriteItem call")
        for request in requests:
            if "PutRequest" in request:
                self._store(request["PutRequest"]["Item"])
            else:
                self._drop(request["DeleteRequest"]["Key"])
        return {"UnprocessedItems": {}}

    def _transact(self, arguments: Arguments) -> dict[str, Any]:
        token = arguments.pop("ClientRequestToken", None)
        if token is not None and self._is_repeated(token, orjson.dumps(arguments)):
            return {}
        writes = [next(iter(write.items())) for write in arguments["TransactItems"]]
        keys = [write["Item" if kind == "Put" else "Key"] for kind, write in writes]
        places = {(key["pk"]["S"], key["sk"]["S"]) for key in keys}
        if len(places) < len(keys):
            raise Refusal(
                "ValidationException",
                "Transaction request cannot include multiple operations on one item",
            )
        if not 0 < len(writes) <= _MAX_TRANSACTION:
            raise Refusal("ValidationException", "Member must have length less than or equal to 100")
        reasons = [self._reason(write, key) for (_, write), key in zip(writes, keys, strict=True)]
        if any(reason["Code"] != "None" for reason in reasons):
            codes = ", ".join(reason["Code"] for reason in reasons)
            raise Refusal(
                "TransactionCanceledException",
                f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]",
                CancellationReasons=reasons,
            )
        for (kind, write), key in zip(writes, keys, strict=True):
            if kind == "Put":
                self._store(write["Item"])
            elif kind == "Update":
                self._store(self._updated(write))
            elif kind == "Delete":
                self._drop(key)
        if token is not None:
            self._tokens[token] = (self._now_ms(), orjson.dumps(arguments))
        return {}

    def _is_repeated(self, token: str, body: bytes) -> bool:
        """Whether a transaction with this token was carried out in the last ten minutes."""
        carried_out = self._tokens.get(token)
        if carried_out is None or self._now_ms() - carried_out[0] >= TOKEN_MS:
            return False
        if carried_out[1] != body:
            raise Refusal(
                "IdempotentParameterMismatchException", "The token was used with other parameters before"
            )
        return True

    def _reason(self, write: Arguments, key: Item) -> dict[str, Any]:
        if self._holds(write, key):
            return {"Code": "None"}
        failed = {"Code": "ConditionalCheckFailed", "Message": _FAILED}
        return failed | self._existing(write, key)

    def _query(self, arguments: Arguments) -> dict[str, Any]:
        values = arguments["ExpressionAttributeValues"]
        names = arguments.get("ExpressionAttributeNames", {})
        check = parse_condition(arguments["KeyConditionExpression"])
        pk = values[":pk"]["S"]
        partition, keys = self._items.get(pk, {}), self._sorted.get(pk, [])
        if "ExclusiveStartKey" in arguments:
            raise NotImplementedError("no caller goes on from a key")
        first = 0
        if ":low" in values:
            first = bisect_left(keys, values[":low"]["S"].encode(), key=str.encode)
        order = (
            keys[first:]
            if arguments.get("ScanIndexForward", True)
            else keys[: first - 1 if first else None : -1]
        )
        found: list[Item] = []
        last = None
        for sk in order:
            item = partition[sk]
            if not check(item, values, names):
                if found and arguments.get("ScanIndexForward", True):
                    break
                continue
            found.append(item)
            if len(found) == arguments.get("Limit"):
                last = {"pk": item["pk"], "sk": item["sk"]}
                break
        projected = [project(item, arguments.get("ProjectionExpression"), names) for item in found]
        answer = {"Items": projected, "Count": len(found), "ScannedCount": len(found)}
        return answer | ({"LastEvaluatedKey": last} if last else {})


_OPERATIONS: Final[dict[str, Callable[[SimulatedTable, Arguments], dict[str, Any]]]] = {
    "GetItem": SimulatedTable._get,
    "PutItem": SimulatedTable._put,
    "UpdateItem": SimulatedTable._update,
    "DeleteItem": SimulatedTable._delete,
    "BatchGetItem": SimulatedTable._batch_get,
    "BatchWriteItem": SimulatedTable._batch_write,
    "TransactWriteItems": SimulatedTable._transact,
    "Query": SimulatedTable._query,
}

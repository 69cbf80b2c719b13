"""The table in DynamoDB: each call is one operation, and each condition is an expression."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tidemark.aws.dynamodb import DynamoDB, Fault
from tidemark.log import table as tables
from tidemark.log.schema import INCARNATION, PK, SK, Item, Key
from tidemark.protocol.errors import Busy


class DynamoDBTable:
    """`log.table.Table` as one DynamoDB table. Every read is strongly consistent."""

    def __init__(self, dynamodb: DynamoDB, name: str) -> None:
        self.dynamodb = dynamodb
        self.name = name

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        try:
            return self.dynamodb.call(operation, {"TableName": self.name} | arguments)
        except Fault as fault:
            raise _translated(fault) from fault

    def get(self, key: Key) -> Item | None:
        item: Item | None = self._call("GetItem", Key=key, ConsistentRead=True).get("Item")
        return item

    def get_many(self, keys: Sequence[Key], attributes: Sequence[str] = ()) -> list[Item]:
        asked: dict[str, Any] = {"Keys": keys, "ConsistentRead": True} | _projection(attributes)
        try:
            return self.dynamodb.read_batch(self.name, asked)
        except Fault as fault:
            raise _translated(fault) from fault

    def put(self, item: Item, condition: tables.Condition | None = None) -> None:
        self._call("PutItem", Item=item, **_conditional(condition))

    def raise_number(self, key: Key, name: str, value: int, incarnation: str) -> None:
        higher = tables.AllOf(tables.equals(INCARNATION, incarnation), tables.Compared(name, "<", value))
        try:
            self._call("UpdateItem", **_updating(tables.Update(key, {name: {"N": str(value)}}), higher))
        except tables.ConditionFailed as refused:
            if refused.existing is None or refused.existing.get(INCARNATION) != {"S": incarnation}:
                raise

    def delete(self, key: Key, condition: tables.Condition | None = None) -> None:
        self._call("DeleteItem", Key=key, **_conditional(condition))

    def delete_many(self, keys: Sequence[Key]) -> None:
        try:
            self.dynamodb.write_batch(self.name, [{"DeleteRequest": {"Key": key}} for key in keys])
        except Fault as fault:
            raise _translated(fault) from fault

    def transact(self, writes: Sequence[tables.Write]) -> None:
        items = [self._transact_item(write) for write in writes]
        try:
            self.dynamodb.call("TransactWriteItems", {"TransactItems": items})
        except Fault as fault:
            raise _translated(fault) from fault

    def _transact_item(self, write: tables.Write) -> dict[str, Any]:
        table = {"TableName": self.name}
        if isinstance(write.change, tables.Update):
            return {"Update": table | _updating(write.change, write.condition)}
        condition = _conditional(write.condition) if write.condition else {}
        return {"Put": table | {"Item": write.change} | condition}

    def query(
        self,
        pk: str,
        *,
        at_least: str = "0",
        at_most: str = "~",
        attributes: Sequence[str] = (),
        limit: int | None = None,
        backward: bool = False,
    ) -> tuple[list[Item], bool]:
        values = {":pk": {"S": pk}, ":low": {"S": at_least}, ":high": {"S": at_most}}
        arguments: dict[str, Any] = {
            "KeyConditionExpression": f"{PK} = :pk AND {SK} BETWEEN :low AND :high",
            "ExpressionAttributeValues": values,
        }
        if attributes:
            arguments |= _projection(attributes)
        if limit is not None:
            arguments["Limit"] = limit
        reply = self._call("Query", ConsistentRead=True, ScanIndexForward=not backward, **arguments)
        return reply["Items"], "LastEvaluatedKey" in reply


def _conditional(condition: tables.Condition | None) -> dict[str, Any]:
    """Return the arguments of a write for its condition. A refusal then returns the existing item."""
    arguments: dict[str, Any] = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    if condition is not None:
        arguments["ConditionExpression"], names, values = _rendered(condition)
        if names:
            arguments["ExpressionAttributeNames"] = names
        if values:
            arguments["ExpressionAttributeValues"] = values
    return arguments


def _updating(update: tables.Update, condition: tables.Condition | None) -> dict[str, Any]:
    """Return the arguments of a write that changes parts of an item."""
    sets = ", ".join(f"#{name} = :{name}" for name in update.sets)
    adds = ", ".join(f"#{name} :{name}" for name in update.adds)
    names = {f"#{name}": name for name in (*update.sets, *update.adds)}
    values = {f":{name}": value for name, value in update.sets.items()}
    values |= {f":{name}": {"N": str(change)} for name, change in update.adds.items()}
    arguments = _conditional(condition) if condition else {}
    return arguments | {
        "Key": update.key,
        "UpdateExpression": " ".join(
            part for part in (f"SET {sets}" if sets else "", f"ADD {adds}" if adds else "") if part
        ),
        "ExpressionAttributeNames": arguments.get("ExpressionAttributeNames", {}) | names,
        "ExpressionAttributeValues": arguments.get("ExpressionAttributeValues", {}) | values,
    }


@lru_cache(maxsize=256)
def _rendered(condition: tables.Condition) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Return the expression with its names and values, which no caller may change. Names get a `#`, because
    some are reserved words of DynamoDB."""
    names: dict[str, str] = {}
    values: dict[str, Any] = {}

    def named(name: str) -> str:
        if name == SK:  # Keeps the condition of each append short.
            return name
        names[f"#{name}"] = name
        return f"#{name}"

    def render(part: tables.Condition) -> str:
        match part:
            case tables.Present(name):
                return f"attribute_exists({named(name)})"
            case tables.Missing(name):
                return f"attribute_not_exists({named(name)})"
            case tables.Compared(name, by, value):
                place = f":c{len(values)}"
                values[place] = {"S": value} if isinstance(value, str) else {"N": str(value)}
                return f"{named(name)} {by} {place}"
            case tables.AllOf(parts):
                return " AND ".join(map(render, parts))
            case tables.AnyOf(parts):
                return f"({' OR '.join(map(render, parts))})"

    return render(condition), names, values


def _projection(attributes: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a read of these attributes, or of whole items if there are none."""
    if not attributes:
        return {}
    return {
        "ProjectionExpression": ",".join(f"#{name}" for name in attributes),
        "ExpressionAttributeNames": {f"#{name}": name for name in attributes},
    }


def _translated(fault: Fault) -> Exception:
    """Translate a refusal by DynamoDB into the table's exception. Any other fault is returned unchanged."""
    maybe_landed = not fault.outcome_known
    if fault.code == "ConditionalCheckFailedException":
        return tables.ConditionFailed(fault.answer.get("Item"), maybe_landed=maybe_landed)
    if fault.retryable:
        return Busy()
    if fault.code == "TransactionCanceledException":
        failed = [reason.get("Code") == "ConditionalCheckFailed" for reason in fault.reasons]
        existing = [reason.get("Item") for reason in fault.reasons]
        return tables.TransactionRefused(failed, existing, maybe_landed=maybe_landed)
    return fault

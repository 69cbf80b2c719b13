"""The one seam to the table: few calls, and the translation of every refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidemark.aws.dynamodb import DynamoDB, Fault
from tidemark.log.schema import ENDED_MS, INCARNATION, PK, SK, Item, Key
from tidemark.protocol.errors import Busy

#: No item has this key yet: the condition under which an append takes its place.
ABSENT: Final = f"attribute_not_exists({SK})"


class ConditionFailed(Exception):
    """The item's condition did not hold; `existing` is what is there instead.

    `maybe_landed` says that the same write was sent before without an answer. That one may have
    landed, and what it wrote may be gone again.
    """

    def __init__(self, existing: Item | None, *, maybe_landed: bool = False) -> None:
        super().__init__("condition failed")
        self.existing = existing
        self.maybe_landed = maybe_landed


class TransactionRefused(Exception):
    """A transaction did nothing. For each write: whether it was the reason, and what is there.
    `maybe_landed` as in ConditionFailed."""

    def __init__(self, reasons: Sequence[Mapping[str, Any]], *, maybe_landed: bool = False) -> None:
        super().__init__("transaction refused")
        self.maybe_landed = maybe_landed
        self.failed = [reason.get("Code") == "ConditionalCheckFailed" for reason in reasons]
        self.existing: list[Item | None] = [reason.get("Item") for reason in reasons]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition expression and the values in it."""

    expression: str
    values: Item | None = None

    def arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {"ConditionExpression": self.expression}
        if self.values:
            arguments["ExpressionAttributeValues"] = self.values
        return arguments


IF_ABSENT: Final = Condition(ABSENT)
#: The most keys that `Table.delete_many` takes.
MAX_DELETES: Final = 25
#: The most keys that `Table.get_many` takes.
MAX_GETS: Final = 100


def if_never_or_ended_before(created_ms: int) -> Condition:
    """The place of a stream or a bucket is free for what is created at `created_ms`: nothing was ever
    there, or it ended before. (Only an end mark has the attribute that is compared.)"""
    return Condition(f"{ABSENT} OR {ENDED_MS} < :created", {":created": {"N": str(created_ms)}})


@dataclass(frozen=True, slots=True)
class Update:
    """A change of some attributes of an item, as an update expression and its values."""

    key: Key
    expression: str
    values: Item


@dataclass(frozen=True, slots=True)
class Write:
    """One write of a transaction: of a whole item, or of parts of one."""

    item: Item | None = None
    update: Update | None = None
    condition: Condition | None = None


class Table:
    """One DynamoDB table. Every read is consistent."""

    def __init__(self, dynamodb: DynamoDB, name: str) -> None:
        self._dynamodb = dynamodb
        self._name = name

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        try:
            return self._dynamodb.call(operation, {"TableName": self._name} | arguments)
        except Fault as fault:
            raise _translated(fault) from fault

    def get(self, key: Key) -> Item | None:
        item: Item | None = self._call("GetItem", Key=key, ConsistentRead=True).get("Item")
        return item

    def get_many(self, keys: Sequence[Key], attributes: Sequence[str] = ()) -> list[Item]:
        """Those items of up to 100 different keys that are there, in no order. Raises Busy where DynamoDB
        leaves some of them over again and again."""
        asked: dict[str, Any] = {"Keys": keys, "ConsistentRead": True} | _projection(attributes)
        try:
            return self._dynamodb.read_batch(self._name, asked)
        except Fault as fault:
            raise _translated(fault) from fault

    def put(self, item: Item, condition: Condition | None = None) -> None:
        """Raises ConditionFailed with the item that is there instead."""
        arguments: dict[str, Any] = {"TableName": self._name, "Item": item}
        arguments["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        if condition:
            arguments |= condition.arguments()
        try:
            self._dynamodb.call("PutItem", arguments)
        except Fault as fault:
            raise _translated(fault) from fault

    def raise_number(self, key: Key, name: str, value: int, incarnation: str) -> None:
        """Raise one attribute of a stream's item to `value`; a higher one stays, so that the write may
        land late. Raises ConditionFailed where the item is not that of this incarnation."""
        values = {":value": {"N": str(value)}, ":inc": {"S": incarnation}}
        try:
            self._call(
                "UpdateItem",
                Key=key,
                UpdateExpression="SET #name = :value",
                ConditionExpression=f"{INCARNATION} = :inc AND #name < :value",
                ExpressionAttributeNames={"#name": name},
                ExpressionAttributeValues=values,
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ConditionFailed as refused:
            if refused.existing is None or refused.existing.get(INCARNATION) != values[":inc"]:
                raise

    def delete(self, key: Key, condition: Condition | None = None) -> None:
        """Raises ConditionFailed with the item that is there."""
        arguments = condition.arguments() if condition else {}
        self._call("DeleteItem", Key=key, ReturnValuesOnConditionCheckFailure="ALL_OLD", **arguments)

    def delete_many(self, keys: Sequence[Key]) -> None:
        """Remove up to 25 items. Raises Busy where DynamoDB leaves some of them over again and again;
        the others are gone then."""
        try:
            self._dynamodb.write_batch(self._name, [{"DeleteRequest": {"Key": key}} for key in keys])
        except Fault as fault:
            raise _translated(fault) from fault

    def transact(self, writes: Sequence[Write]) -> None:
        """All of the writes or none. Raises TransactionRefused."""
        items = [self._transact_item(write) for write in writes]
        try:
            self._dynamodb.call("TransactWriteItems", {"TransactItems": items})
        except Fault as fault:
            raise _translated(fault) from fault

    def _transact_item(self, write: Write) -> dict[str, Any]:
        arguments: dict[str, Any] = {"TableName": self._name}
        if write.condition:
            arguments |= write.condition.arguments()
            arguments["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        if write.item is not None:
            return {"Put": arguments | {"Item": write.item}}
        update = write.update
        assert update is not None, "a write has an item or an update"
        values = update.values | ((write.condition.values or {}) if write.condition else {})
        arguments |= {
            "Key": update.key,
            "UpdateExpression": update.expression,
            "ExpressionAttributeValues": values,
        }
        return {"Update": arguments}

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
        """One page of the partition's items by sort key, and whether there are more."""
        values = {":pk": {"S": pk}, ":low": {"S": at_least}, ":high": {"S": at_most}}
        arguments: dict[str, Any] = {
            "KeyConditionExpression": f"{PK} = :pk AND {SK} BETWEEN :low AND :high",
            "ExpressionAttributeValues": values,
        }
        arguments |= _projection(attributes)
        if limit is not None:
            arguments["Limit"] = limit
        reply = self._call("Query", ConsistentRead=True, ScanIndexForward=not backward, **arguments)
        return reply["Items"], "LastEvaluatedKey" in reply


def _projection(attributes: Sequence[str]) -> dict[str, Any]:
    """Of a read that asks for these attributes alone, or, where there are none, for whole items."""
    if not attributes:
        return {}
    return {
        "ProjectionExpression": ",".join(f"#{name}" for name in attributes),
        "ExpressionAttributeNames": {f"#{name}": name for name in attributes},
    }


def _translated(fault: Fault) -> Exception:
    """What a caller of the table gets for a refusal of DynamoDB; the refusal itself where it is a fault of
    ours."""
    maybe_landed = not fault.outcome_known
    if fault.code == "ConditionalCheckFailedException":
        return ConditionFailed(fault.answer.get("Item"), maybe_landed=maybe_landed)
    if fault.retryable:
        return Busy()
    if fault.code == "TransactionCanceledException":
        return TransactionRefused(fault.reasons, maybe_landed=maybe_landed)
    return fault

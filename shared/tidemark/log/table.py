"""The one seam to DynamoDB: few calls, and the translation of every error they raise."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from botocore import exceptions
from botocore.config import Config
from botocore.exceptions import ClientError

from tidemark.log.schema import Item, Key
from tidemark.protocol.errors import Busy, Unavailable

#: No item has this key yet: the condition under which an append takes its place.
ABSENT: Final = "attribute_not_exists(sk)"

#: Short timeouts, because every write may safely be sent again: its own mark tells
#: whether an earlier try landed. Validation of parameters costs a fifth of a call.
CLIENT_CONFIG: Final = Config(
    connect_timeout=2,
    read_timeout=5,
    max_pool_connections=64,
    parameter_validation=False,
    # "legacy" waits 50 ms before it asks DynamoDB again, "standard" up to a second.
    retries={"mode": "legacy", "max_attempts": 5},
    user_agent="tidemark",
)

_THROTTLED = frozenset(
    {
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
_CONFLICT_ATTEMPTS = 8


class ConditionFailed(Exception):
    """The item's condition did not hold; `existing` is what is there instead."""

    def __init__(self, existing: Item | None) -> None:
        super().__init__("condition failed")
        self.existing = existing


class TransactionRefused(Exception):
    """A transaction did nothing. For each write: whether it was the reason, and what is there."""

    def __init__(self, reasons: Sequence[Mapping[str, Any]]) -> None:
        super().__init__("transaction refused")
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


def if_incarnation(incarnation: str) -> Condition:
    """The stream item is still that of this incarnation."""
    return Condition("inc = :inc", {":inc": {"S": incarnation}})


@dataclass(frozen=True, slots=True)
class Write:
    """One write of a transaction: of a whole item, or the removal of a key."""

    item: Item | None = None
    delete: Key | None = None
    condition: Condition | None = None


class Table:
    """DynamoDB's table through a boto3 client. Every read is consistent."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name

    def get(self, key: Key) -> Item | None:
        with _translated():
            answer = self._client.get_item(TableName=self._name, Key=key, ConsistentRead=True)
        item: Item | None = answer.get("Item")
        return item

    def put(self, item: Item, condition: Condition | None = None) -> None:
        """Raises ConditionFailed with the item that is there instead."""
        arguments = condition.arguments() if condition else {}
        with _translated():
            self._client.put_item(
                TableName=self._name,
                Item=item,
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **arguments,
            )

    def set_number(self, key: Key, name: str, value: int, condition: Condition) -> None:
        """Change one attribute of an item. Raises ConditionFailed."""
        values = {":value": {"N": str(value)}} | (condition.values or {})
        with _translated():
            self._client.update_item(
                TableName=self._name,
                Key=key,
                UpdateExpression="SET #name = :value",
                ConditionExpression=condition.expression,
                ExpressionAttributeNames={"#name": name},
                ExpressionAttributeValues=values,
            )

    def delete(self, key: Key) -> None:
        with _translated():
            self._client.delete_item(TableName=self._name, Key=key)

    def delete_many(self, keys: Sequence[Key]) -> None:
        """Remove up to 25 items; those that DynamoDB leaves over are asked for again."""
        requests = {self._name: [{"DeleteRequest": {"Key": key}} for key in keys]}
        while requests:
            with _translated():
                answer = self._client.batch_write_item(RequestItems=requests)
            requests = answer.get("UnprocessedItems") or {}

    def transact(self, writes: Sequence[Write]) -> None:
        """All of the writes or none. Raises TransactionRefused."""
        with _translated():
            self._client.transact_write_items(TransactItems=[self._transact_item(write) for write in writes])

    def _transact_item(self, write: Write) -> dict[str, Any]:
        arguments: dict[str, Any] = {"TableName": self._name}
        if write.condition:
            arguments |= write.condition.arguments()
            arguments["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        if write.item is not None:
            return {"Put": arguments | {"Item": write.item}}
        return {"Delete": arguments | {"Key": write.delete}}

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
        arguments: dict[str, Any] = {
            "KeyConditionExpression": "pk = :pk AND sk BETWEEN :low AND :high",
            "ExpressionAttributeValues": {
                ":pk": {"S": pk},
                ":low": {"S": at_least},
                ":high": {"S": at_most},
            },
        }
        if attributes:
            arguments["ProjectionExpression"] = ",".join(f"#{name}" for name in attributes)
            arguments["ExpressionAttributeNames"] = {f"#{name}": name for name in attributes}
        if limit is not None:
            arguments["Limit"] = limit
        with _translated():
            answer = self._client.query(
                TableName=self._name,
                ConsistentRead=True,
                ScanIndexForward=not backward,
                **arguments,
            )
        return answer["Items"], "LastEvaluatedKey" in answer


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ClientError as fault:
        raise _translate(fault) from fault
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as fault:
        raise Unavailable from fault


def _translate(fault: ClientError) -> Exception:
    code = fault.response.get("Error", {}).get("Code", "")
    if code == "ConditionalCheckFailedException":
        return ConditionFailed(fault.response.get("Item"))
    if code == "TransactionCanceledException":
        return _translate_cancelled(fault)
    if code in _THROTTLED:
        return Busy()
    status = fault.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return Unavailable() if status >= 500 else fault


def _translate_cancelled(fault: ClientError) -> Exception:
    refused = TransactionRefused(fault.response.get("CancellationReasons", []))
    return refused if any(refused.failed) else Busy()


def retry_conflicts(response: tuple[Any, Mapping[str, Any]] | None, attempts: int, **_: Any) -> float | None:
    """A botocore `needs-retry` handler: another writer's transaction is in our way.

    botocore itself does not count a transaction conflict among what to try again. Returns
    the delay in seconds, or None to leave the decision to botocore.
    """
    if response is None or attempts >= _CONFLICT_ATTEMPTS or not _is_conflict(response[1]):
        return None
    return random.uniform(0, min(0.02 * 2**attempts, 0.5))


def _is_conflict(parsed: Mapping[str, Any]) -> bool:
    code = parsed.get("Error", {}).get("Code")
    if code == "TransactionConflictException":
        return True
    codes = {reason.get("Code") for reason in parsed.get("CancellationReasons", [])}
    return (
        code == "TransactionCanceledException"
        and bool(codes & {"TransactionConflict", "ThrottlingError"})
        and "ConditionalCheckFailed" not in codes
    )

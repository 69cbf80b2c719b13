"""A thin DynamoDB client: JSON by orjson, HTTP by `aws/http.py`.

The call is most of an append's cost. Items are in DynamoDB's own JSON, with binary values as base64 text.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import orjson

from tidemark.aws import retry
from tidemark.aws.http import Account, AwsRequest, BlockingHttp, Http
from tidemark.protocol.errors import OutcomeUnknown, StorageSilent, StorageUnavailable

SendOperation = Callable[[str, bytes], tuple[int, bytes]]
"""Sends one operation and its JSON, and returns status and JSON. Raises NoAnswer. Tests replace it."""

_ANSWER_SECONDS: Final = 5.0

_THROTTLED: Final = frozenset(
    {
        "InternalServerError",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "TransactionConflictException",
        "TransactionInProgressException",
        "UnprocessedItems",
        "UnprocessedKeys",
    }
)
#: The table does not exist, or access is denied. Nothing was done.
_OUT_OF_REACH: Final = frozenset(
    {
        "AccessDeniedException",
        "ExpiredTokenException",
        "InvalidSignatureException",
        "ResourceNotFoundException",
        "UnrecognizedClientException",
    }
)

#: Members that a reply of 200 must have, or may have at most. Another reply is another operation's.
_ALWAYS: Final = {
    "Query": "Items",
    "Scan": "Count",
    "BatchGetItem": "Responses",
    "BatchWriteItem": "UnprocessedItems",
}
_WRITTEN: Final = frozenset({"Attributes", "ConsumedCapacity", "ItemCollectionMetrics"})
_AT_MOST: Final = {
    "GetItem": frozenset({"Item", "ConsumedCapacity"}),
    "PutItem": _WRITTEN,
    "UpdateItem": _WRITTEN,
    "DeleteItem": _WRITTEN,
    "TransactWriteItems": _WRITTEN,
}


class Fault(retry.Failure):
    """DynamoDB has refused a call. `answer` is the whole reply."""

    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        self.status = status
        self.answer = answer
        self.outcome_known = status < 500
        self.code: str = str(answer.get("__type", "")).rpartition("#")[2]
        super().__init__(f"{self.code} ({status}): {answer.get('message', answer.get('Message', ''))}")

    @property
    def reasons(self) -> list[dict[str, Any]]:
        """The reasons of a cancelled transaction: one for each write."""
        reasons: list[dict[str, Any]] = self.answer.get("CancellationReasons", [])
        return reasons

    @property
    def retryable(self) -> bool:  # type: ignore[override] # depends on the reply
        """Whether a repetition may succeed: yes after a conflict with another transaction, no after the
        transaction's own condition failed."""
        if self.code == "TransactionCanceledException":
            codes = {reason.get("Code") for reason in self.reasons}
            return "ConditionalCheckFailed" not in codes and codes != {"ValidationError"}
        return self.status >= 500 or self.code in _THROTTLED


class DynamoDB:
    """One method for every operation, as in the API reference: `call("PutItem", {...})`."""

    def __init__(self, send: SendOperation) -> None:
        self.send = send
        self.breaker = retry.Breaker()
        self.policy: retry.RetryPolicy = retry.REQUEST_POLICY
        self.sleep: Callable[[float], None] = time.sleep
        self.now: Callable[[], float] = time.monotonic

    def call(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Make a call. Raises Fault if DynamoDB refuses, StorageUnavailable if it cannot be reached,
        StorageSilent if the call was not sent because DynamoDB has stopped answering, and OutcomeUnknown if
        an attempt got no reply: the call may have been executed.

        A call that may succeed later is retried. This is safe, because a repeated write recognizes its own
        item.
        """
        if operation == "TransactWriteItems":
            arguments = arguments | {"ClientRequestToken": secrets.token_hex(18)}
        body = orjson.dumps(arguments)
        attempts = retry.Attempts(self.sleep, self.now, self.policy)
        while True:
            try:
                status, reply = self.breaker.exchange(self.now, self.send, operation, body)
                return self.parse(operation, status, reply)
            except retry.Failure as failure:
                if not attempts.go_on_after(failure):
                    raise _final(failure) from failure

    def parse(self, operation: str, status: int, reply: bytes) -> dict[str, Any]:
        """Parse a reply. Raises Fault for an error of DynamoDB, and NoAnswer for any other reply that is not
        the operation's result: it came from something in between, and the call may have been executed."""
        try:
            parsed = orjson.loads(reply)
        except orjson.JSONDecodeError as failure:
            raise retry.NoAnswer(f"{operation}: the reply is not JSON (status {status})") from failure
        if not isinstance(parsed, dict):
            raise retry.NoAnswer(f"{operation}: the reply is not a JSON object (status {status})")
        if status != 200:
            if "__type" not in parsed and status < 500:
                raise retry.NoAnswer(f"{operation}: the reply names no error (status {status})")
            raise Fault(status, parsed)
        always, at_most = _ALWAYS.get(operation), _AT_MOST.get(operation)
        fits = always in parsed if always else at_most is None or parsed.keys() <= at_most
        if not fits or "__type" in parsed:
            raise retry.NoAnswer(f"{operation}: the reply has {', '.join(sorted(parsed)) or 'nothing'}")
        return parsed

    def write_batch(self, table: str, requests: Sequence[dict[str, Any]]) -> None:
        """Write up to 25 puts and deletions, not atomically. Unprocessed ones are sent again after a pause.
        Raises as `call`, and a retryable Fault if some remain unprocessed."""
        for _ in self._until_none_is_left("BatchWriteItem", "UnprocessedItems", table, requests):
            pass

    def read_batch(self, table: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the existing items of up to 100 keys, in any order. `asked` is the request of BatchGetItem
        for one table. Unprocessed keys are requested again after a pause. Raises as `write_batch`."""
        replies = self._until_none_is_left("BatchGetItem", "UnprocessedKeys", table, asked)
        return [item for reply in replies for item in reply["Responses"].get(table, [])]

    def _until_none_is_left(
        self, operation: str, left_over: str, table: str, asked: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield each reply. Its member `left_over` is the next request."""
        left: dict[str, Any] = {table: asked}
        attempts = retry.Attempts(self.sleep, self.now, self.policy)
        while True:
            reply = self.call(operation, {"RequestItems": left})
            yield reply
            left = reply[left_over]
            if not left:
                return
            rest = left[table]
            many = len(rest["Keys"] if isinstance(rest, dict) else rest)
            fault = Fault(200, {"__type": left_over, "message": f"{many} are left over"})
            if not attempts.go_on_after(fault):
                raise fault


def _final(failure: retry.Failure) -> Exception:
    """Return the exception of `call` for the last failure. A refusal proves the outcome only if every earlier
    attempt was answered. A failed condition always proves it, because a writer recognizes its own write."""
    if isinstance(failure, Fault) and not failure.retryable and failure.code not in _OUT_OF_REACH:
        return failure
    if not failure.outcome_known:
        return OutcomeUnknown()
    if isinstance(failure, retry.Silent):
        return StorageSilent()
    return StorageUnavailable() if isinstance(failure, Fault) and failure.code in _OUT_OF_REACH else failure


def _send(http: Http, operation: str, body: bytes) -> tuple[int, bytes]:
    target = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"DynamoDB_20120810.{operation}"}
    return http(AwsRequest("POST", "/", target, body))


def connect_dynamodb(account: Account, endpoint: str | None = None) -> DynamoDB:
    """Connect to `endpoint`, or to the same endpoint as boto3."""
    return DynamoDB(partial(_send, BlockingHttp(account.service("dynamodb", endpoint), _ANSWER_SECONDS)))

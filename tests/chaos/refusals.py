"""What AWS answers instead of doing what it was asked."""

from __future__ import annotations

import json
import random
import zlib

from tests.chaos.exchange import Request

_NAMESPACE = "com.amazonaws.dynamodb.v20120810"
_SINGLE_WRITES = frozenset({"PutItem", "UpdateItem", "DeleteItem"})


def throttle(request: Request, chance: random.Random) -> bytes:
    """Too many requests; nothing was done."""
    if not request.operation[0].isupper() or request.operation == request.method:
        return _s3(503, "SlowDown", "Please reduce your request rate.")
    if request.operation == "TransactWriteItems":
        items = len(json.loads(request.body)["TransactItems"])
        reasons = [{"Code": "None"} for _ in range(items)]
        reasons[chance.randrange(items)] = {
            "Code": "TransactionConflict",
            "Message": "Transaction is ongoing",
        }
        return _dynamodb(
            400, "TransactionCanceledException", "Transaction cancelled", CancellationReasons=reasons
        )
    if request.operation in _SINGLE_WRITES and chance.random() < 0.5:
        return _dynamodb(400, "TransactionConflictException", "Transaction is ongoing for the item")
    return _dynamodb(400, "ProvisionedThroughputExceededException", "The level of throughput was exceeded")


def internal_error(request: Request) -> bytes:
    """It may have been done or not."""
    if request.operation == request.method:
        return _s3(500, "InternalError", "We encountered an internal error. Please try again.")
    return _dynamodb(500, "InternalServerError", "Internal server error")


def _dynamodb(status: int, code: str, message: str, **more: object) -> bytes:
    body = json.dumps({"__type": f"{_NAMESPACE}#{code}", "message": message, **more}).encode()
    head = (
        f"HTTP/1.1 {status} {'Bad Request' if status == 400 else 'Internal Server Error'}\r\n"
        f"content-type: application/x-amz-json-1.0\r\nx-amzn-requestid: CHAOS\r\n"
        f"x-amz-crc32: {zlib.crc32(body)}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _s3(status: int, code: str, message: str) -> bytes:
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message>'
        "<RequestId>CHAOS</RequestId></Error>"
    ).encode()
    head = (
        f"HTTP/1.1 {status} {'Slow Down' if status == 503 else 'Internal Server Error'}\r\n"
        f"content-type: application/xml\r\nx-amz-request-id: CHAOS\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body

"""What AWS answers instead of doing what it was asked."""

import random
import zlib
from http import HTTPStatus

from tests.chaos.exchange import Request
from tests.support import conflict, refusal


def throttle(request: Request, chance: random.Random) -> bytes:
    """Too many requests; nothing was done."""
    if not request.is_to_dynamodb:
        return _of_s3(503, "SlowDown")
    if request.operation == "TransactWriteItems" or (request.is_write and chance.random() < 0.5):
        return _of_dynamodb(*conflict(request.operation))
    return _of_dynamodb(*refusal("ProvisionedThroughputExceededException"))


def internal_error(request: Request) -> bytes:
    """It may have been done or not."""
    if not request.is_to_dynamodb:
        return _of_s3(500, "InternalError")
    return _of_dynamodb(500, refusal("InternalServerError")[1])


def _of_dynamodb(status: int, body: bytes) -> bytes:
    return _reply(status, "application/x-amz-json-1.0", body, f"x-amz-crc32: {zlib.crc32(body)}\r\n")


def _of_s3(status: int, code: str) -> bytes:
    return _reply(status, "application/xml", f"<Error><Code>{code}</Code></Error>".encode())


def _reply(status: int, content_type: str, body: bytes, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {content_type}\r\n{more}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

"""Clients of the table and the S3 bucket, for the driver and the tasks.

The text of an AWS error has the service, action, table or bucket, region, AWS's code and message, and the
remedy. Its class is a subclass of the original error, so code that retries `OutcomeUnknown` retries it too.
"""

from __future__ import annotations

from typing import Any, Final

from botocore.config import Config

from tidemark.aws.clients import CLIENT_SETTINGS
from tidemark.aws.dynamodb import DynamoDB, Fault, connect_dynamodb
from tidemark.aws.http import Account
from tidemark.aws.retry import Failure
from tidemark.aws.s3 import Objects, Refusal, connect_objects
from tidemark.blobs import BlobStore
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.log.table import Table
from tidemark.protocol.errors import Busy, OutcomeUnknown, ProtocolError, StorageSilent, StorageUnavailable
from tidemark.spark.options import ConnectionOptions

_DEFAULT_REGION = "us-east-1"

_ABSENT: Final = frozenset({"ResourceNotFoundException", "NoSuchBucket", "NoSuchKey"})
_EXPIRED: Final = frozenset({"ExpiredTokenException", "ExpiredToken", "TokenRefreshRequired"})
_BY_KEY: Final = (
    "InvalidAccessKeyId InvalidSignatureException SignatureDoesNotMatch UnrecognizedClientException"
)
_UNKNOWN_KEY: Final = frozenset(_BY_KEY.split())


class StorageMissing(StorageUnavailable):
    """The table, bucket or object does not exist."""


class StorageForbidden(StorageUnavailable):
    """The credentials are invalid, or do not allow the call."""


class StorageSlow(Busy):
    """Storage throttled the call and all its retries."""


class StorageOutOfReach(OutcomeUnknown):
    """Storage did not answer."""


def explain(error: ProtocolError, service: str, action: str, place: str) -> ProtocolError:
    """Return the error with cause and remedy in its text. `service` is DynamoDB or S3, `place` a table or
    bucket."""
    cause = error.__cause__
    while cause is not None and not isinstance(cause, Failure):
        cause = cause.__cause__
    detail = str(cause).strip() if cause is not None else error.message
    explained: ProtocolError
    if isinstance(error, OutcomeUnknown | StorageSilent) or not isinstance(cause, Fault | Refusal):
        explained = StorageOutOfReach()
        what = f"has no answer ({detail}): check endpoint and network, and try again"
    elif isinstance(error, Busy):
        explained = StorageSlow()
        what = f"is throttled ({detail}): try again, with fewer tasks or more capacity"
    elif cause.code in _ABSENT or (isinstance(cause, Refusal) and cause.status == 404):
        explained = StorageMissing()
        what = f"finds nothing ({detail}): is its name right, and region and account?"
    elif isinstance(error, StorageUnavailable):
        todo = f"allow {service.lower()}:{action} there"
        if cause.code in _EXPIRED:
            todo = "the credentials have expired: renew them"
        elif cause.code in _UNKNOWN_KEY:
            todo = "the credentials are not valid there: check the key, the secret and the clock"
        explained, what = StorageForbidden(), f"is refused ({detail}): {todo}"
    else:
        return error
    explained.message = f"tidemark: {service} {action} of {place} {what}"
    explained.args = (explained.message,)
    return explained


class ExplainingDynamoDB(DynamoDB):
    """Client whose errors name `place`: the table and its region."""

    place = ""

    def call(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            return super().call(operation, arguments)
        except (OutcomeUnknown, StorageSilent, StorageUnavailable) as error:
            raise explain(error, "DynamoDB", operation, self.place) from error
        except Fault as fault:
            if not fault.retryable:
                raise
            busy = Busy()
            busy.__cause__ = fault
            raise explain(busy, "DynamoDB", operation, self.place) from fault


class ExplainingObjects(Objects):
    place = ""

    def _call(self, operation: str, key: str, body: bytes, size: int | None = None) -> bytes:
        try:
            return super()._call(operation, key, body, size)
        except (Busy, OutcomeUnknown, StorageSilent, StorageUnavailable) as error:
            raise explain(error, "S3", operation, f"{key} in {self.place}") from error


def connect_table(
    connection: ConnectionOptions, client: type[ExplainingDynamoDB] = ExplainingDynamoDB
) -> Table:
    """Return the table with a client of the class `client`."""
    account = Account(connection.region)
    plain = connect_dynamodb(account, endpoint=connection.dynamodb_endpoint)
    dynamodb = client(plain.send)
    at = f" at {connection.dynamodb_endpoint}" if connection.dynamodb_endpoint else ""
    dynamodb.place = f"table {connection.table} in {account.region}{at}"
    return DynamoDBTable(dynamodb, connection.table)


def connect_blobs(connection: ConnectionOptions) -> BlobStore:
    account = Account(connection.region)
    plain = connect_objects(account, connection.blob_bucket, endpoint=connection.s3_endpoint)
    objects = ExplainingObjects(plain.send)
    objects.place = f"bucket {connection.blob_bucket} in {account.region}"
    return BlobStore(
        objects, lambda: s3_client(connection.s3_endpoint, connection.region), connection.blob_bucket
    )


def s3_client(endpoint: str | None, region: str | None) -> Any:
    import boto3

    config = Config(**CLIENT_SETTINGS, s3={"addressing_style": "path"})
    return boto3.client("s3", endpoint_url=endpoint, region_name=region or _DEFAULT_REGION, config=config)

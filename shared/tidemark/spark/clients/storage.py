"""The table and the bucket, reached from a driver or a task."""

from __future__ import annotations

from typing import Any

from botocore.config import Config

from tidemark.aws.account import Account
from tidemark.aws.clients import CLIENT_SETTINGS
from tidemark.aws.dynamodb import connect_dynamodb
from tidemark.aws.s3 import connect_objects
from tidemark.blobs.store import BlobStore
from tidemark.log.table import Table
from tidemark.spark.options.connection import ConnectionOptions

DEFAULT_REGION = "us-east-1"


def connect_table(connection: ConnectionOptions) -> Table:
    return Table(
        connect_dynamodb(Account(connection.region), endpoint=connection.dynamodb_endpoint), connection.table
    )


def connect_blobs(connection: ConnectionOptions) -> BlobStore:
    objects = connect_objects(
        Account(connection.region), connection.blob_bucket, endpoint=connection.s3_endpoint
    )
    return BlobStore(
        objects, lambda: s3_client(connection.s3_endpoint, connection.region), connection.blob_bucket
    )


def s3_client(endpoint: str | None, region: str | None) -> Any:
    import boto3

    config = Config(**CLIENT_SETTINGS, s3={"addressing_style": "path"})
    return boto3.client("s3", endpoint_url=endpoint, region_name=region or DEFAULT_REGION, config=config)

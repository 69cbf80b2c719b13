"""The table and the bucket, reached from a driver or a task."""

from __future__ import annotations

from typing import Any

from botocore.config import Config
from botocore.session import get_session

from tidemark.blobs.store import BlobStore
from tidemark.clients import CLIENT_CONFIG
from tidemark.log.dynamodb import BlockingHttp, DynamoDB, Signer
from tidemark.log.table import Table
from tidemark.spark.items import BulkDynamoDB
from tidemark.spark.options import Origin

DEFAULT_REGION = "us-east-1"


def connect_table(origin: Origin) -> Table:
    return Table(DynamoDB(_send(origin)), origin.table)


def connect_bulk(origin: Origin) -> Table:
    """The same table; its queries are answered with `Item`s."""
    return Table(BulkDynamoDB(_send(origin)), origin.table)


def _send(origin: Origin) -> BlockingHttp:
    session = get_session()
    region = _region(origin, session)
    credentials = session.get_credentials()
    if credentials is None:
        raise RuntimeError("tidemark: no AWS credentials were found where this runs")
    endpoint = origin.dynamodb_endpoint or _aws_endpoint(session, region)
    return BlockingHttp(endpoint, Signer(endpoint, region, credentials))


def connect_blobs(origin: Origin) -> BlobStore:
    return BlobStore(lambda: s3_client(origin.s3_endpoint, origin.region), origin.blob_bucket)


def s3_client(endpoint: str | None, region: str | None) -> Any:
    import boto3

    config = CLIENT_CONFIG.merge(Config(s3={"addressing_style": "path"}))
    return boto3.client("s3", endpoint_url=endpoint, region_name=region or DEFAULT_REGION, config=config)


def _region(origin: Origin, session: Any) -> str:
    return origin.region or session.get_config_variable("region") or DEFAULT_REGION


def _aws_endpoint(session: Any, region: str) -> str:
    resolver = session.get_component("endpoint_resolver")
    return f"https://{resolver.construct_endpoint('dynamodb', region)['hostname']}"

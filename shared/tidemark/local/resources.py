"""The table and the bucket, made if missing: what `template.yaml` makes in AWS."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from tidemark.aws.clients import refuse_cut_replies
from tidemark.local.endpoints import DEFAULT_REGION, VARIABLES
from tidemark.log.schema import table_definition

TTL_ATTRIBUTE = "ttl"
#: The engine has just said that it is ready, so a failure is one: no long row of retries.
_CONFIG = Config(retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=5, read_timeout=30)


def create_table(table_name: str, environment: Mapping[str, str]) -> None:
    """Also waits until it is active. An existing table is left as it is. Raises botocore's errors."""
    with closing(_client("dynamodb", environment)) as client:
        with suppress(client.exceptions.ResourceInUseException):
            client.create_table(**table_definition(table_name))
        client.get_waiter("table_exists").wait(TableName=table_name, WaiterConfig={"Delay": 1})
        specification = {"Enabled": True, "AttributeName": TTL_ATTRIBUTE}
        # Expiry is judged on read, so an engine that deletes nothing, or refuses, is good enough.
        with suppress(ClientError):
            client.update_time_to_live(TableName=table_name, TimeToLiveSpecification=specification)


def create_bucket(bucket_name: str, environment: Mapping[str, str]) -> None:
    """An existing bucket of the same owner is left as it is. Raises botocore's errors."""
    with closing(_client("s3", environment)) as client, suppress(client.exceptions.BucketAlreadyOwnedByYou):
        region = client.meta.region_name
        # S3 must be told every region but the first.
        place = (
            {"CreateBucketConfiguration": {"LocationConstraint": region}} if region != DEFAULT_REGION else {}
        )
        client.create_bucket(Bucket=bucket_name, **place)


def create_queue(name: str, environment: Mapping[str, str]) -> str:
    """Its URL; an existing one's, where it is there. Raises botocore's errors."""
    with closing(_client("sqs", environment)) as client:
        url: str = client.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "180"})["QueueUrl"]
    return url


def _client(service: str, environment: Mapping[str, str]) -> Any:
    """`environment` is what the local stack adds; what is not in it, boto3 takes from the process's own."""
    client = boto3.client(
        service,
        endpoint_url=environment.get(VARIABLES[service]),
        region_name=environment.get("AWS_DEFAULT_REGION"),
        aws_access_key_id=environment.get("AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=environment.get("AWS_SECRET_ACCESS_KEY"),
        config=_CONFIG,
    )
    refuse_cut_replies(client)
    return client

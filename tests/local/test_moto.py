"""How moto's server differs from moto: one request at a time, transactions that copy no table, and objects of
any content type."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest
import urllib3

from tidemark.local.engines import LocalServices

moto_server = pytest.importorskip("tidemark.local.moto_server", reason="moto is not installed")

RECEIVE = {"HTTP_X_AMZ_TARGET": "AmazonSQS.ReceiveMessage"}
PUT = {"HTTP_X_AMZ_TARGET": "DynamoDB_20120810.PutItem"}


def no_response(*_: Any) -> None:
    """A WSGI application needs a function that begins its response."""


def test_writes_run_one_after_another() -> None:
    inside, most = 0, 0

    def application(_environ: dict[str, Any], _start: Callable[..., Any]) -> Iterable[bytes]:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.02)
        inside -= 1
        return [b""]

    guarded = moto_server.OneAtATime(application)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: guarded(PUT, no_response), range(12)))
    assert most == 1


def test_a_receive_that_waits_does_not_block_a_write() -> None:
    written = threading.Event()

    def application(environ: dict[str, Any], _start: Callable[..., Any]) -> Iterable[bytes]:
        if environ == RECEIVE:
            assert written.wait(60), "the write waits for the message"
        else:
            written.set()
        return [b"done"]

    guarded = moto_server.OneAtATime(application)
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(guarded, RECEIVE, no_response)
        assert list(guarded(PUT, no_response)) == [b"done"]
        assert list(received.result()) == [b"done"]


def client_of(services: LocalServices, service: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=services.environment[f"AWS_ENDPOINT_URL_{service.upper()}"],
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
    )


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", None])
def test_an_upload_is_stored_whatever_its_content_type(content_type: str | None) -> None:
    """curl and urllib send that of a form if no other is given."""
    with LocalServices(in_memory=True, engine="moto") as services:
        services.create_bucket("uploads")
        s3 = client_of(services, "s3")
        place = {"Bucket": "uploads", "Key": "one"}
        url = s3.generate_presigned_url("put_object", Params=place)
        headers = {} if content_type is None else {"Content-Type": content_type}
        stored = urllib3.request("PUT", url, body=b"a=1&b=2", headers=headers, timeout=60, retries=False)
        assert stored.status == 200
        assert s3.get_object(**place)["Body"].read() == b"a=1&b=2"


def key(partition: str, name: str) -> dict[str, Any]:
    return {"pk": {"S": partition}, "sk": {"S": name}}


def count_up(partition: str, name: str) -> dict[str, Any]:
    change = {"UpdateExpression": "ADD n :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
    return {"Update": {"TableName": "changes", "Key": key(partition, name), **change}}


def put(partition: str, name: str, **more: Any) -> dict[str, Any]:
    return {"Put": {"TableName": "changes", "Item": key(partition, name), **more}}


def remove(partition: str, name: str) -> dict[str, Any]:
    return {"Delete": {"TableName": "changes", "Key": key(partition, name)}}


def test_a_transaction_writes_all_its_items_or_none() -> None:
    """Our server undoes a failed one by item: moto copies the whole table, which takes seconds for a large
    one."""
    with LocalServices(in_memory=True, engine="moto") as services:
        services.create_table("changes")
        tables = client_of(services, "dynamodb")
        for name in ("counted", "removed", "there"):
            tables.put_item(TableName="changes", Item=key("p", name) | {"n": {"N": "1"}})

        def content() -> list[Any]:
            return sorted(tables.scan(TableName="changes")["Items"], key=str)

        before = content()
        changes = [count_up("p", "counted"), remove("p", "removed"), put("new", "new")]
        refused = put("p", "there", ConditionExpression="attribute_not_exists(sk)")
        with pytest.raises(tables.exceptions.TransactionCanceledException):
            tables.transact_write_items(TransactItems=[*changes, refused])
        assert content() == before
        tables.transact_write_items(TransactItems=changes)
        assert [(each["sk"]["S"], each.get("n", {}).get("N")) for each in content()] == [
            ("new", None),
            ("counted", "2"),
            ("there", "1"),
        ]
        tables.close()

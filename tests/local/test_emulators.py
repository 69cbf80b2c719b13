"""The emulators of AWS and the environment that leads to them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
import urllib3

from tests.available import require_engine
from tests.support import recorded_writes
from tidemark.local.emulators import environment_for
from tidemark.local.engines import LocalServices


def test_boto3_follows_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment_for({"dynamodb": "http://127.0.0.1:1234"}, {}).items():
        monkeypatch.setenv(name, value)
    with closing(boto3.client("dynamodb")) as made:
        assert made.meta.endpoint_url == "http://127.0.0.1:1234"


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"])
def test_placeholder_credentials_are_set_only_if_there_are_none(name: str) -> None:
    assert "AWS_SECRET_ACCESS_KEY" in environment_for({}, {})
    assert "AWS_SECRET_ACCESS_KEY" not in environment_for({}, {name: "given"})


@pytest.mark.parametrize(
    ("given", "region"),
    [({}, "us-east-1"), ({"AWS_REGION": "eu-1"}, "eu-1"), ({"AWS_DEFAULT_REGION": "eu-2"}, "eu-2")],
)
def test_both_region_variables_are_set_from_either(given: dict[str, str], region: str) -> None:
    added = environment_for({}, given)
    assert (added["AWS_REGION"], added["AWS_DEFAULT_REGION"]) == (region, region)


def test_a_proxy_is_not_used_for_a_loopback_address() -> None:
    """botocore would send even 127.0.0.1 to HTTP_PROXY."""
    environment = environment_for({}, {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "intranet"})
    assert environment["NO_PROXY"] == "intranet,127.0.0.1,localhost"
    assert "NO_PROXY" not in environment_for({}, {"PATH": "/bin"})


ministack_server = pytest.importorskip("tidemark.local.ministack_server", reason="ministack is not installed")


def test_an_object_is_synced_then_named_then_its_directories_are_synced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bucket = tmp_path / "s3/bucket/new"
    bucket.mkdir(parents=True)
    monkeypatch.setattr(ministack_server, "_settled", {tmp_path / "s3"})
    made = recorded_writes(monkeypatch)
    ministack_server._durable_write(str(bucket / "first"), b"tide")
    assert made == ["sync first", "name first", "sync new", "sync s3", "sync bucket"]
    made.clear()
    ministack_server._durable_write(str(bucket / "second"), "description", text=True)
    assert made == ["sync second", "name second", "sync new"]
    assert (bucket / "first").read_bytes() == b"tide"
    assert (bucket / "second").read_text() == "description"


WRITE = """
import sys
from tidemark.local.ministack_server import _durable_write
_durable_write(sys.argv[1], b"tide")
print("acknowledged")
"""


def test_ministack_ends_if_it_cannot_write(tmp_path: Path) -> None:
    """ministack itself would log the error and acknowledge the object."""
    command = [sys.executable, "-c", WRITE, str(tmp_path / "missing/object")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stdout == ""
    assert "FileNotFoundError" in process.stderr


moto_server = pytest.importorskip("tidemark.local.moto_server", reason="moto is not installed")

RECEIVE = {"HTTP_X_AMZ_TARGET": "AmazonSQS.ReceiveMessage"}
PUT = {"HTTP_X_AMZ_TARGET": "DynamoDB_20120810.PutItem"}


def no_response(*_: Any) -> None:
    """A WSGI application needs a function that begins its response."""


def test_writes_run_one_after_another_and_do_not_wait_for_a_receive() -> None:
    written, inside, most = threading.Event(), 0, 0

    def application(environ: dict[str, Any], _start: Callable[..., Any]) -> Iterable[bytes]:
        nonlocal inside, most
        if environ == RECEIVE:
            assert written.wait(60), "the writes wait for the message"
            return [b"done"]
        inside += 1
        most = max(most, inside)
        time.sleep(0.02)
        inside -= 1
        return [b"done"]

    guarded = moto_server.OneAtATime(application)
    with ThreadPoolExecutor(5) as pool:
        received = pool.submit(guarded, RECEIVE, no_response)
        list(pool.map(lambda _: guarded(PUT, no_response), range(12)))
        written.set()
        assert list(received.result()) == [b"done"]
    assert most == 1


@pytest.fixture
def moto(start_engines: Callable[[str], LocalServices]) -> LocalServices:
    require_engine("moto")
    return start_engines("moto")


def client_of(services: LocalServices, service: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=services.environment[f"AWS_ENDPOINT_URL_{service.upper()}"],
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
    )


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", None])
def test_an_upload_is_stored_whatever_its_content_type(moto: LocalServices, content_type: str | None) -> None:
    """curl and urllib send that of a form if no other is given."""
    moto.create_bucket("uploads")
    with closing(client_of(moto, "s3")) as objects:
        place = {"Bucket": "uploads", "Key": "one"}
        url = objects.generate_presigned_url("put_object", Params=place)
        headers = {} if content_type is None else {"Content-Type": content_type}
        stored = urllib3.request("PUT", url, body=b"a=1&b=2", headers=headers, timeout=60, retries=False)
        assert stored.status == 200
        assert objects.get_object(**place)["Body"].read() == b"a=1&b=2"


def test_a_transaction_writes_all_its_items_or_none(moto: LocalServices) -> None:
    """Our server undoes a failed one by item: moto copies the whole table, which takes seconds for a large
    one."""

    def key(name: str) -> dict[str, Any]:
        return {"pk": {"S": "p"}, "sk": {"S": name}}

    def content() -> dict[str, str | None]:
        items = tables.scan(TableName="changes")["Items"]
        return {each["sk"]["S"]: each.get("n", {}).get("N") for each in items}

    moto.create_table("changes")
    one, add = {":one": {"N": "1"}}, "ADD n :one"
    with closing(client_of(moto, "dynamodb")) as tables:
        for name in ("counted", "removed", "there"):
            tables.put_item(TableName="changes", Item=key(name) | {"n": {"N": "1"}})
        changes: list[tuple[str, dict[str, Any]]] = [
            ("Update", {"Key": key("counted"), "UpdateExpression": add, "ExpressionAttributeValues": one}),
            ("Delete", {"Key": key("removed")}),
            ("Put", {"Item": key("new")}),
            ("Put", {"Item": key("there"), "ConditionExpression": "attribute_not_exists(sk)"}),
        ]
        writes = [{kind: {"TableName": "changes"} | asked} for kind, asked in changes]
        with pytest.raises(tables.exceptions.TransactionCanceledException):
            tables.transact_write_items(TransactItems=writes)
        assert content() == {"counted": "1", "removed": "1", "there": "1"}
        tables.transact_write_items(TransactItems=writes[:-1])
        assert content() == {"counted": "2", "new": None, "there": "1"}

"""The engines keep what they acknowledge, end with their parent, and say which versions they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.available import require_engine
from tests.local.polling import is_running, wait_until
from tidemark.engine.sqlite_file import UnusableDatabase
from tidemark.local.engines import LocalServices
from tidemark.local.process import EngineFailed
from tidemark.server.lock import DataDirectoryInUse

TABLE, BUCKET = "tidemark-test", "tidemark-test"


_clients: list[Any] = []


@pytest.fixture(autouse=True)
def _close_clients() -> Iterator[None]:
    yield
    while _clients:
        _clients.pop().close()


def client(services: LocalServices, name: str) -> Any:
    made = boto3.client(
        name,
        endpoint_url=services.environment[f"AWS_ENDPOINT_URL_{name.upper()}"],
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"total_max_attempts": 1}, parameter_validation=False),
    )
    _clients.append(made)
    return made


def item(number: int) -> dict[str, Any]:
    return {"pk": {"S": "log"}, "sk": {"S": f"{number:016d}"}, "b": {"B": b"tide" * 50}}


def test_every_service_works_in_memory(services: LocalServices) -> None:
    """A table, conditions, objects, queues: all other tests rely on them."""
    services.create_table("engines")
    services.create_bucket("engines")
    services.create_table("engines")
    services.create_bucket("engines")
    tables = client(services, "dynamodb")
    put = {"TableName": "engines", "Item": item(1), "ConditionExpression": "attribute_not_exists(sk)"}
    tables.put_item(**put)
    with pytest.raises(tables.exceptions.ConditionalCheckFailedException) as refused:
        tables.put_item(**put, ReturnValuesOnConditionCheckFailure="ALL_OLD")
    assert refused.value.response["Item"] == item(1)
    objects = client(services, "s3")
    objects.put_object(Bucket="engines", Key="a/b", Body=b"0123456789", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        objects.put_object(Bucket="engines", Key="a/b", Body=b"", IfNoneMatch="*")
    assert objects.get_object(Bucket="engines", Key="a/b", Range="bytes=2-4")["Body"].read() == b"234"
    queues = client(services, "sqs")
    url = queues.create_queue(QueueName="engines")["QueueUrl"]
    queues.send_message(QueueUrl=url, MessageBody="ring")
    received = queues.receive_message(QueueUrl=url, WaitTimeSeconds=20)
    assert [message["Body"] for message in received["Messages"]] == ["ring"]


def test_a_service_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown services: kafka"):
        LocalServices(in_memory=True, only=["kafka"]).start()


def test_data_survives_a_stop(tmp_path: Path) -> None:
    with LocalServices(tmp_path / "data") as services:
        _fill(services)
    with LocalServices(tmp_path / "data") as services:
        _check_filled(services)
        # Also what a first start makes is found again.
        _create(services)
        _check_filled(services)


def _create(services: LocalServices) -> None:
    services.create_table(TABLE)
    services.create_bucket(BUCKET)


def _fill(services: LocalServices) -> None:
    _create(services)
    client(services, "dynamodb").put_item(TableName=TABLE, Item=item(7))
    client(services, "s3").put_object(Bucket=BUCKET, Key="x/y", Body=b"blob" * 30_000)


def _check_filled(services: LocalServices) -> None:
    key = {"pk": item(7)["pk"], "sk": item(7)["sk"]}
    found = client(services, "dynamodb").get_item(TableName=TABLE, Key=key, ConsistentRead=True)
    assert found["Item"] == item(7)
    blob = client(services, "s3").get_object(Bucket=BUCKET, Key="x/y")["Body"].read()
    assert blob == b"blob" * 30_000


def test_second_start_on_the_same_data_is_refused(tmp_path: Path) -> None:
    require_engine()
    refusal = pytest.raises(DataDirectoryInUse, match=f"in use by process {os.getpid()}")
    with LocalServices(tmp_path / "data", only=["s3"]), refusal:
        LocalServices(tmp_path / "data", only=["s3"]).start()


#: Starts the engines on a directory, says their process ids, and waits to be killed.
PARENT = """
import sys
from tidemark.local.engines import LocalServices
with LocalServices(sys.argv[1]) as services:
    print(*services.pids.values(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_engines_end_with_a_parent_that_is_killed(parent: subprocess.Popen[str], tmp_path: Path) -> None:
    """The next start, right after it, finds the directory free."""
    require_engine()
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert pids
    assert all(is_running(pid) for pid in pids)
    parent.kill()
    with LocalServices(tmp_path / "data"):
        assert not any(is_running(pid) for pid in pids), "the lock was free before they were gone"


def test_an_emulator_that_ends_is_reported(tmp_path: Path) -> None:
    reported: list[str] = []
    with LocalServices(tmp_path / "data", on_failure=reported.append) as services:
        os.kill(services.pids["ministack"], signal.SIGKILL)
        wait_until(lambda: bool(reported), "the report")
    assert len(reported) == 1
    assert reported[0].startswith("ministack was ended by signal 9 (log: ")


def test_an_orderly_stop_reports_nothing(tmp_path: Path) -> None:
    require_engine()
    reported: list[str] = []
    with LocalServices(tmp_path / "data", on_failure=reported.append) as services:
        pids = services.pids.values()
    assert reported == []
    assert not any(is_running(pid) for pid in pids)


def test_a_table_that_cannot_be_read_is_named_and_stays_as_it_is(tmp_path: Path) -> None:
    database = tmp_path / "data/tables/tidemark.db"
    database.parent.mkdir(parents=True)
    database.write_bytes(b"this is not a database " * 1000)
    with pytest.raises(UnusableDatabase, match=r"tidemark\.db cannot be used"):
        LocalServices(tmp_path / "data").start()
    assert database.read_bytes().startswith(b"this is not"), "what it cannot read it must not replace"
    with LocalServices(tmp_path / "data", only=["s3"]):
        pass


def test_without_any_engine_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.local.emulators.has_ministack", lambda: False)
    with pytest.raises(EngineFailed, match="ministack is not installed; `make run` installs it"):
        LocalServices(tmp_path / "data").start()


def test_a_run_in_memory_leaves_no_directory_behind() -> None:
    with LocalServices(in_memory=True, only=["dynamodb"]) as services:
        assert services._directory is not None
        path = services._directory.path
        assert path.is_dir()
    assert not path.exists()

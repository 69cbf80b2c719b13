"""The engines keep what they acknowledge, end with their parent, and say which versions they are."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.available import require_engine
from tests.local.polling import is_running, wait_until
from tidemark.local import directory, dynoxide
from tidemark.local.dynoxide import EngineNotAvailable
from tidemark.local.engines import ALL, ENGINES, LocalServices, plan_engines
from tidemark.local.process import EngineFailed
from tidemark.server.lock import DataDirectoryInUse
from tidemark.server.ports import free_port

TABLE, BUCKET = "tidemark-test", "tidemark-test"


_clients: list[Any] = []


@pytest.fixture(autouse=True)
def _close_clients(no_endpoints: None) -> Iterator[None]:
    yield
    while _clients:
        _clients.pop().close()


def client(services: LocalServices, name: str) -> Any:
    variable = {"dynamodb": "DYNAMODB", "dynamodbstreams": "DYNAMODB_STREAMS"}.get(name, name.upper())
    made = boto3.client(
        name,
        endpoint_url=services.environment[f"AWS_ENDPOINT_URL_{variable}"],
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
    """A table with its stream, conditions, objects, queues: all other tests rely on them."""
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
    assert _stream_keys(services, "engines") == [{"pk": item(1)["pk"], "sk": item(1)["sk"]}]
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


def _stream_keys(services: LocalServices, table: str) -> list[dict[str, Any]]:
    streams = client(services, "dynamodbstreams")
    arn = streams.list_streams(TableName=table)["Streams"][0]["StreamArn"]
    shard = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"][0]["ShardId"]
    iterator = streams.get_shard_iterator(StreamArn=arn, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    records = streams.get_records(ShardIterator=iterator["ShardIterator"])["Records"]
    return [record["dynamodb"]["Keys"] for record in records]


def test_only_the_services_asked_for_are_started(dynoxide_binary: Path) -> None:
    with LocalServices(in_memory=True, only=["dynamodb"]) as services:
        assert set(services.pids) == {"dynoxide"}
        assert "AWS_ENDPOINT_URL_DYNAMODB_STREAMS" in services.environment
        assert "AWS_ENDPOINT_URL_S3" not in services.environment


def test_a_service_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown services: kafka"):
        LocalServices(in_memory=True, only=["kafka"]).start()


def test_data_survives_a_stop(dynoxide_binary: Path, tmp_path: Path) -> None:
    with LocalServices(tmp_path / "data") as services:
        _fill(services)
    with LocalServices(tmp_path / "data") as services:
        assert services.durable
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


class Writer(threading.Thread):
    """Writes items and objects until an engine ends; `items` and `objects` hold what was acknowledged."""

    def __init__(self, services: LocalServices, number: int) -> None:
        super().__init__()
        self.first = number * 1_000_000
        self.items: list[int] = []
        self.objects: list[int] = []
        self._tables = client(services, "dynamodb")
        self._store = client(services, "s3")

    def run(self) -> None:
        for number in range(self.first, self.first + 1_000_000):
            try:
                self._tables.put_item(TableName=TABLE, Item=item(number))
                self.items.append(number)
                if number % 5 == 0:
                    self._store.put_object(Bucket=BUCKET, Key=f"blobs/{number}", Body=blob_of(number))
                    self.objects.append(number)
            except (BotoCoreError, ClientError):
                return


def blob_of(number: int) -> bytes:
    return f"{number:010d}".encode() * 8000


@pytest.mark.parametrize("enough", [1, 40, 200])
def test_nothing_acknowledged_is_lost_by_kill_9(dynoxide_binary: Path, tmp_path: Path, enough: int) -> None:
    """Four writers; every engine is killed in the middle, then started again on its data."""
    with LocalServices(tmp_path / "data") as services:
        _create(services)
        writers = [Writer(services, number) for number in range(4)]
        for writer in writers:
            writer.start()
        wait_until(lambda: sum(len(writer.items) for writer in writers) >= enough, "some writes")
        for pid in services.pids.values():
            os.kill(pid, signal.SIGKILL)
        for writer in writers:
            writer.join()
    with LocalServices(tmp_path / "data") as services:
        _create(services)
        kept_items, kept_objects = _read_back(services)
        tables = client(services, "dynamodb")
        tables.put_item(TableName=TABLE, Item=item(9_999_999))
    for writer in writers:
        assert set(writer.items) <= kept_items
        assert set(writer.objects) <= kept_objects


def _read_back(services: LocalServices) -> tuple[set[int], set[int]]:
    pages = client(services, "dynamodb").get_paginator("scan").paginate(TableName=TABLE, ConsistentRead=True)
    items = {int(found["sk"]["S"]) for page in pages for found in page["Items"]}
    store, objects = client(services, "s3"), set()
    for page in store.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for entry in page.get("Contents", []):
            number = int(entry["Key"].removeprefix("blobs/"))
            assert store.get_object(Bucket=BUCKET, Key=entry["Key"])["Body"].read() == blob_of(number)
            objects.add(number)
    return items, objects


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


@pytest.mark.parametrize("name", ["dynoxide", "ministack"])
def test_an_engine_that_ends_is_reported(dynoxide_binary: Path, tmp_path: Path, name: str) -> None:
    reported: list[str] = []
    with LocalServices(tmp_path / "data", on_failure=reported.append) as services:
        os.kill(services.pids[name], signal.SIGKILL)
        wait_until(lambda: bool(reported), "the report")
    assert len(reported) == 1, "the stop of the other one is none"
    assert reported[0].startswith(f"{name} was ended by signal 9 (log: ")


def test_an_orderly_stop_reports_nothing(tmp_path: Path) -> None:
    require_engine()
    reported: list[str] = []
    with LocalServices(tmp_path / "data", on_failure=reported.append) as services:
        pids = services.pids.values()
    assert reported == []
    assert not any(is_running(pid) for pid in pids)


def test_an_engine_that_does_not_start_is_named_with_its_log(dynoxide_binary: Path, tmp_path: Path) -> None:
    database = tmp_path / "data/dynamodb/dynamodb.sqlite"
    database.parent.mkdir(parents=True)
    database.write_bytes(b"this is not a database " * 1000)
    with pytest.raises(EngineFailed, match=r"dynoxide ended with code \d+ \(log: .*dynoxide\.log"):
        LocalServices(tmp_path / "data").start()
    assert database.read_bytes().startswith(b"this is not"), "what it cannot read it must not replace"
    with LocalServices(tmp_path / "data", only=["s3"]):
        pass


def test_a_port_that_another_process_takes_first_is_replaced(
    dynoxide_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may bind it between choosing and binding."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        choices = iter([taken.getsockname()[1]])
        monkeypatch.setattr(dynoxide, "free_port", lambda: next(choices, None) or free_port())
        with LocalServices(in_memory=True, only=["dynamodb"]) as services:
            services.create_table(TABLE)
            endpoint = services.environment["AWS_ENDPOINT_URL_DYNAMODB"]
            assert endpoint != f"http://127.0.0.1:{taken.getsockname()[1]}"


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """As on a machine where these are not installed. Node is missing too."""
    monkeypatch.setenv("DYNOXIDE_PATH", "/nonexistent/dynoxide")
    for module in packages:
        monkeypatch.setattr(f"tidemark.local.{module}.is_installed", lambda: False)


@pytest.mark.parametrize(
    ("missing", "stand_in", "description"),
    [
        ((), "moto", "DynamoDB: moto in memory; S3, SQS: ministack in memory"),
        (("moto",), "ministack", "DynamoDB, S3, SQS: ministack in memory"),
        (("ministack",), "moto", "DynamoDB, S3, SQS: moto in memory"),
    ],
)
def test_what_stands_in_without_dynoxide(
    missing: tuple[str, ...],
    stand_in: str,
    description: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything works, in memory, and says so; objects on disk are out of its reach.

    A table in memory forgets its pointers, so the janitor would take every object on disk for an orphan.
    """
    for engine in {"moto", "ministack"} - {*missing}:
        require_engine(engine)
    without(monkeypatch, *missing)
    kept = tmp_path / "data/s3/000000000000" / BUCKET / "kept"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"from an earlier run")
    with LocalServices(tmp_path / "data") as services:
        assert set(services.pids) == {"moto", "ministack"} - set(missing)
        assert not services.durable
        assert services.notices[0].startswith("NOTHING WILL BE KEPT: dynoxide is not available")
        assert f"so {stand_in} stands in" in services.notices[0]
        assert services.description == description
        _fill(services)
        _check_filled(services)
        listed = client(services, "s3").list_objects_v2(Bucket=BUCKET)["Contents"]
        assert [entry["Key"] for entry in listed] == ["x/y"]
        streamed = _stream_keys(services, TABLE)
        assert streamed == [{"pk": item(7)["pk"], "sk": item(7)["sk"]}]
    assert kept.read_bytes() == b"from an earlier run"
    assert not list((tmp_path / "data/s3").rglob("y"))


def test_without_any_engine_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "moto", "ministack")
    with pytest.raises(EngineFailed, match="ministack is not installed; `make run` installs it"):
        LocalServices(tmp_path / "data").start()


def test_an_engine_that_is_chosen_by_name_is_used(dynoxide_binary: Path) -> None:
    plans = {engine: plan_engines(ALL, {}, engine=engine) for engine in ENGINES}
    tables, others = ("dynamodb", "streams"), ("s3", "sqs")
    assert plans["dynoxide"].dynoxide_services == tables
    assert plans["dynoxide"].ministack_services == others
    assert plans["moto"].moto_services == tables + others
    assert plans["ministack"].ministack_services == tables + others


def test_dynoxide_chosen_by_name_has_no_substitute(tmp_path: Path) -> None:
    with pytest.raises(EngineNotAvailable):
        plan_engines(ALL, {}, tmp_path, "dynoxide")


def test_services_with_the_users_own_endpoints_are_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://objects.example")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://queues.example")
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://tables.example")
    with LocalServices(tmp_path / "data") as services:
        assert services.pids == {}
        assert services.description == "DynamoDB: your endpoint; S3: your endpoint; SQS: your endpoint"
        assert services.notices == []
        assert "AWS_ENDPOINT_URL_S3" not in services.environment
        assert services.environment["AWS_ENDPOINT_URL_DYNAMODB_STREAMS"] == "http://tables.example"


def test_a_plan_without_tables_does_not_need_dynoxide(tmp_path: Path) -> None:
    plan = plan_engines(["s3"], {}, tmp_path)
    assert (plan.ministack_services, plan.lacking) == (("s3",), None)


def test_a_run_in_memory_leaves_no_directory_behind(dynoxide_binary: Path) -> None:
    with LocalServices(in_memory=True, only=["dynamodb"]) as services:
        assert services._directory is not None
        path = services._directory.path
        assert path.is_dir()
    assert not path.exists()


def test_the_directory_of_a_killed_run_in_memory_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "MEMORY", tmp_path)
    abandoned, fresh = tmp_path / "tidemark-local-old", tmp_path / "tidemark-local-new"
    for path in (abandoned, fresh):
        path.mkdir()
        (path / "lock").write_text("1\n")
    os.utime(abandoned / "lock", (1, 1))
    held = directory.DataDirectory.open(tmp_path / "tidemark-local-held")
    os.utime(held.path / "lock", (1, 1))
    directory.DataDirectory.open_in_memory().close()
    assert not abandoned.exists()
    assert fresh.exists()
    assert held.path.exists()
    held.close()

"""DynamoDB, S3 and SQS for the handlers and for tests, started together and stopped together.

    with LocalServices(data_dir=".data/lambda") as services:
        os.environ.update(services.environment)
        services.create_table("tidemark")
        services.create_bucket("tidemark-blobs")

DynamoDB is the embedded engine at a port, or ministack's; S3 and SQS are ministack's.
"""

import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.stack.dynamodb import DynamoDBProtocol
from tests.stack.dynamodb_server import DynamoDBServer
from tests.stack.emulators import DEFAULT_REGION, VARIABLES, Ministack, environment_for
from tidemark.aws.clients import refuse_cut_replies
from tidemark.log.schema import table_definition
from tidemark.server.ports import locked

ALL: Final = ("dynamodb", "s3", "sqs")
TTL_ATTRIBUTE: Final = "ttl"
#: The engine has just said that it is ready: a failure is not retried for long.
_CONFIG: Final = Config(
    retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=5, read_timeout=30
)


@dataclass
class LocalServices:
    """The running engines. Enter it, or call `start` and `stop`, from the main thread (see `Child`).

    Without a `data_dir` nothing is kept, which is fast: for tests. `only` is a part of `ALL`. `on_failure` is
    called, from another thread, when ministack ends by itself.
    """

    data_dir: Path | str | None = None
    only: Collection[str] = ALL
    on_failure: Callable[[str], None] = lambda _: None
    #: The engine of DynamoDB.
    engine: Literal["embedded", "ministack"] = "embedded"
    #: The variables to add to the process's environment; empty until started.
    environment: dict[str, str] = field(default_factory=dict, init=False)
    #: Called with each change in the embedded engine: the table's name, and the record that a trigger gets.
    followers: list[Callable[[str, dict[str, Any]], None]] = field(default_factory=list, init=False)
    _tables: DynamoDBServer | None = field(default=None, init=False)
    _running: ExitStack = field(default_factory=ExitStack, init=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Raises DataDirectoryInUse, EngineFailed, OSError, UnusableDatabase, and leaves nothing running."""
        try:
            self._start_engines(self._directory())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._running.close()
        self._tables = None

    def create_table(self, table_name: str) -> None:
        """The table with its stream and TTL, if it is missing; waits until it is active. Raises botocore's
        errors."""
        with closing(client_of("dynamodb", self.environment)) as client:
            with suppress(client.exceptions.ResourceInUseException):
                client.create_table(**table_definition(table_name))
            client.get_waiter("table_exists").wait(TableName=table_name, WaiterConfig={"Delay": 1})
            specification = {"Enabled": True, "AttributeName": TTL_ATTRIBUTE}
            # Expiry is judged on read, so an engine that deletes nothing, or refuses, is good enough.
            with suppress(ClientError):
                client.update_time_to_live(TableName=table_name, TimeToLiveSpecification=specification)

    def create_bucket(self, bucket_name: str) -> None:
        """The bucket, if it is missing. Raises botocore's errors."""
        with closing(client_of("s3", self.environment)) as client:
            region = client.meta.region_name
            # S3 must be told every region but the first.
            place = {"LocationConstraint": region}
            more = {"CreateBucketConfiguration": place} if region != DEFAULT_REGION else {}
            with suppress(client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket=bucket_name, **more)

    def create_queue(self, name: str) -> str:
        """The URL of the queue, which is made if it is missing. Raises botocore's errors."""
        with closing(client_of("sqs", self.environment)) as client:
            attributes = {"VisibilityTimeout": "180"}
            url: str = client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def table(self, table_name: str) -> DynamoDBProtocol | None:
        """One of the embedded engine's, past its port."""
        return self._tables.tables.get(table_name) if self._tables else None

    def _directory(self) -> Path:
        """The data directory, or a temporary one for logs."""
        if self.data_dir is not None:
            return Path(self.data_dir).absolute()
        temporary = tempfile.TemporaryDirectory(prefix="tidemark-local-", ignore_cleanup_errors=True)
        return Path(self._running.enter_context(temporary))

    def _start_engines(self, directory: Path) -> None:
        descriptor = self._running.enter_context(locked(directory))
        tables, objects, logs = (directory / name for name in ("tables", "s3", "logs"))
        for each in (tables, objects, logs):
            each.mkdir(exist_ok=True)
        emulated = [name for name in ALL if name in self.only]
        endpoints, is_kept = dict[str, str](), self.data_dir is not None
        if self.engine == "embedded":
            emulated.remove("dynamodb")
            self._tables = DynamoDBServer(tables if is_kept else None, self._changed)
            self._running.callback(self._tables.stop)
            self._tables.start()
            endpoints["dynamodb"] = self._tables.endpoint
        if emulated:
            emulator = Ministack(emulated, objects if is_kept else None, logs / "ministack.log")
            self._running.callback(emulator.child.stop)
            emulator.start((descriptor,))
            emulator.wait_until_ready()
            endpoints |= dict.fromkeys(emulated, emulator.endpoint)
            emulator.child.watch(self.on_failure)
        self.environment = environment_for(endpoints, os.environ)

    def _changed(self, table: str, record: dict[str, Any]) -> None:
        for follower in self.followers:
            follower(table, record)


def client_of(service: str, environment: Mapping[str, str]) -> Any:
    """`environment` is what the engines add; what is not in it, boto3 takes from the process's own."""
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

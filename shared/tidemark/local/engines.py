"""DynamoDB, S3 and SQS for the handlers and for tests, started together and stopped together.

    with LocalServices(data_dir=".data/lambda") as services:
        os.environ.update(services.environment)
        services.create_table("tidemark")
        services.create_bucket("tidemark-blobs")

DynamoDB is the embedded engine at a port; S3 and SQS are ministack's. Tests also have moto or ministack, in
memory, as independent judges of what DynamoDB answers.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from tidemark.aws.clients import refuse_cut_replies
from tidemark.local.dynamodb import DynamoDBProtocol
from tidemark.local.dynamodb_server import DynamoDBServer
from tidemark.local.emulators import DEFAULT_REGION, VARIABLES, Ministack, Moto, environment_for
from tidemark.log.schema import table_definition
from tidemark.server.lock import DirectoryLock

ROOT: Final = Path(__file__).resolve().parents[3]
ALL: Final = ("dynamodb", "s3", "sqs")
ENGINES: Final = ("embedded", "moto", "ministack")


@dataclass
class LocalServices:
    """The running engines. Enter it, or call `start` and `stop`, from the main thread (see `process.Child`).

    `in_memory` keeps nothing and is fast: for tests. `only` is a part of `ALL`. `on_failure` is called, from
    another thread, when an emulator ends by itself.
    """

    data_dir: Path | str | None = None
    in_memory: bool = False
    only: Collection[str] = ALL
    on_failure: Callable[[str], None] | None = None
    #: Of DynamoDB; one of `ENGINES`.
    engine: str = "embedded"
    #: The variables to add to the process's environment; empty until started.
    environment: dict[str, str] = field(default_factory=dict, init=False)
    #: Hear of each change in the embedded engine: the table's name, and the record that a trigger gets.
    followers: list[Callable[[str, dict[str, Any]], None]] = field(default_factory=list, init=False)
    _tables: DynamoDBServer | None = field(default=None, init=False)
    _emulators: list[Moto | Ministack] = field(default_factory=list, init=False)
    _directory: DataDirectory | None = field(default=None, init=False)
    _failed: threading.Event = field(default_factory=threading.Event, init=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Raises DataDirectoryInUse, EngineFailed, OSError, UnusableDatabase, and leaves nothing running."""
        if unknown := set(self.only) - set(ALL):
            raise ValueError(f"unknown services: {', '.join(sorted(unknown))}")
        if self.in_memory:
            self._directory = DataDirectory.open_in_memory()
        elif self.data_dir is None:
            raise ValueError("a data directory is needed unless in_memory")
        else:
            self._directory = DataDirectory.open(Path(self.data_dir))
        try:
            self._start_engines(self._directory)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for emulator in self._emulators:
            emulator.child.stop()
        self._emulators.clear()
        if self._tables is not None:
            self._tables.stop()
            self._tables = None
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def create_table(self, table_name: str) -> None:
        """The table with its stream and TTL, if it is missing."""
        create_table(table_name, self.environment)

    def create_bucket(self, bucket_name: str) -> None:
        """The bucket, if it is missing."""
        create_bucket(bucket_name, self.environment)

    def create_queue(self, name: str) -> str:
        """The URL of the queue, which is made if it is missing."""
        return create_queue(name, self.environment)

    def table(self, table_name: str) -> DynamoDBProtocol | None:
        """One of the embedded engine's, past its port."""
        return self._tables.tables.get(table_name) if self._tables else None

    @property
    def pids(self) -> dict[str, int]:
        return {emulator.child.name: emulator.child.pid for emulator in self._emulators}

    def _start_engines(self, directory: DataDirectory) -> None:
        emulated = [name for name in ALL if name in self.only]
        endpoints: dict[str, str] = {}
        if self.engine == "embedded" and "dynamodb" in emulated:
            emulated.remove("dynamodb")
            tables = None if self.in_memory else directory.tables
            self._tables = DynamoDBServer(tables, self._changed)
            self._tables.start()
            endpoints["dynamodb"] = self._tables.endpoint
        if emulated:
            emulator = self._emulator(emulated, directory)
            self._emulators.append(emulator)
            emulator.start((directory.lock.descriptor,))
            emulator.wait_until_ready()
            endpoints |= dict.fromkeys(emulated, emulator.endpoint)
            emulator.child.watch(self._ended)
        self.environment = environment_for(endpoints, os.environ)

    def _emulator(self, services: Collection[str], directory: DataDirectory) -> Moto | Ministack:
        if self.engine == "moto":
            return Moto(directory.log("moto"))
        keeps = not self.in_memory and self.engine == "embedded"
        objects = directory.objects if keeps else None
        return Ministack(services, objects, directory.log("ministack"))

    def _changed(self, table: str, record: dict[str, Any]) -> None:
        for follower in self.followers:
            follower(table, record)

    def _ended(self, what: str) -> None:
        if self.on_failure is not None and not self._failed.is_set():
            self._failed.set()
            self.on_failure(what)


PREFIX = "tidemark-local-"


class DataDirectoryUnusable(OSError):
    """The data directory cannot be made, or not be written."""


class DataDirectory:
    """An open (locked) data directory. A temporary one, for logs alone, is removed when it is closed."""

    def __init__(self, path: Path, *, temporary: bool = False) -> None:
        self.path = path
        self.temporary = temporary
        self.lock = DirectoryLock(path)

    @classmethod
    def open(cls, path: Path) -> DataDirectory:
        """Raises DataDirectoryInUse, OSError."""
        directory = cls(path.absolute())
        directory._prepare()
        return directory

    @classmethod
    def open_in_memory(cls) -> DataDirectory:
        directory = cls(Path(tempfile.mkdtemp(prefix=PREFIX)), temporary=True)
        directory._prepare()
        return directory

    @property
    def tables(self) -> Path:
        return self.path / "tables"

    @property
    def objects(self) -> Path:
        return self.path / "s3"

    def log(self, engine: str) -> Path:
        return self.path / "logs" / f"{engine}.log"

    def close(self) -> None:
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        self.lock.release()

    def _prepare(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.lock.acquire()
            for directory in (self.tables, self.objects, self.log("x").parent):
                directory.mkdir(exist_ok=True)
        except OSError as error:
            message = f"{self.path} cannot be used: {error.strerror}; choose another DATA_DIR"
            raise DataDirectoryUnusable(message) from error


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

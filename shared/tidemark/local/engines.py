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
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tidemark.engine.dynamodb import DynamoDBProtocol
from tidemark.local import resources
from tidemark.local.directory import DataDirectory
from tidemark.local.dynamodb_port import EmbeddedDynamoDB
from tidemark.local.endpoints import environment_for
from tidemark.local.ministack import Ministack
from tidemark.local.moto import Moto

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
    #: Of the embedded engine; 0 is any.
    port: int = 0
    #: The variables to add to the process's environment; empty until started.
    environment: dict[str, str] = field(default_factory=dict, init=False)
    #: Hear of each change in the embedded engine: the table's name, and the record that a trigger gets.
    followers: list[Callable[[str, dict[str, Any]], None]] = field(default_factory=list, init=False)
    _tables: EmbeddedDynamoDB | None = field(default=None, init=False)
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
        resources.create_table(table_name, self.environment)

    def create_bucket(self, bucket_name: str) -> None:
        """The bucket, if it is missing."""
        resources.create_bucket(bucket_name, self.environment)

    def create_queue(self, name: str) -> str:
        """The URL of the queue, which is made if it is missing."""
        return resources.create_queue(name, self.environment)

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
            self._tables = EmbeddedDynamoDB(tables, self._changed, self.port)
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
        return Ministack(services, directory.objects if keeps else None, directory.log("ministack"))

    def _changed(self, table: str, record: dict[str, Any]) -> None:
        for follower in self.followers:
            follower(table, record)

    def _ended(self, what: str) -> None:
        if self.on_failure is not None and not self._failed.is_set():
            self._failed.set()
            self.on_failure(what)

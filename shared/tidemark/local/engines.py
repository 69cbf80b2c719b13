"""The emulators behind the local stack, started together and stopped together.

    with LocalServices(data_dir=".data") as services:
        os.environ.update(services.environment)
        services.create_table("tidemark")
        services.create_bucket("tidemark-blobs")

DynamoDB and its Streams are dynoxide's, S3 and SQS ministack's. Where dynoxide is not available, moto stands
in for it if it is installed (a development dependency), else ministack; both in memory, and `notices` says
so. Where ministack is not installed, moto does everything. A service that has an endpoint variable already
is the user's: it is left alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tidemark.local import dynoxide, ministack, moto, resources
from tidemark.local.directory import DataDirectory
from tidemark.local.dynoxide import Dynoxide, EngineNotAvailable, find_binary
from tidemark.local.endpoints import environment_for, has_own_endpoint
from tidemark.local.ministack import Ministack
from tidemark.local.moto import Moto

ROOT: Final = Path(__file__).resolve().parents[3]
ALL: Final = ("dynamodb", "streams", "s3", "sqs")
TITLES: Final = {"dynamodb": "DynamoDB", "streams": "Streams", "s3": "S3", "sqs": "SQS"}
#: By preference, for DynamoDB and its Streams.
ENGINES: Final = ("dynoxide", "moto", "ministack")
MINISTACK_NAMES: Final = {"dynamodb": "dynamodb", "streams": "dynamodbstreams", "s3": "s3", "sqs": "sqs"}

Engine = Dynoxide | Moto | Ministack


@dataclass(frozen=True)
class EnginePlan:
    """Who serves what."""

    dynoxide: Path | None = None
    dynoxide_services: tuple[str, ...] = ()
    moto_services: tuple[str, ...] = ()
    ministack_services: tuple[str, ...] = ()
    own_services: tuple[str, ...] = ()
    #: Why dynoxide is missing, where it is wanted.
    lacking: str | None = None

    @property
    def table_is_volatile(self) -> bool:
        return self.lacking is not None

    @property
    def stand_in(self) -> str:
        """Who serves DynamoDB where dynoxide does not."""
        return "moto" if "dynamodb" in self.moto_services else "ministack"


def plan_engines(
    wanted: Collection[str], environment: Mapping[str, str], root: Path = ROOT, engine: str | None = None
) -> EnginePlan:
    """`engine`, one of `ENGINES`, serves DynamoDB whatever else there is; moto then serves everything.

    Raises EngineNotAvailable where dynoxide is asked for by name and missing.
    """
    own = tuple(name for name in ALL if name in wanted and has_own_endpoint(name, environment))
    tables = tuple(name for name in ("dynamodb", "streams") if name in wanted and name not in own)
    others = tuple(name for name in ("s3", "sqs") if name in wanted and name not in own)
    stand_in = "moto" if moto.is_installed() else "ministack"
    engine_of_others = stand_in if engine == "moto" or not ministack.is_installed() else "ministack"
    engine_of_tables, binary, lacking = engine or "dynoxide", None, None
    if tables and engine_of_tables == "dynoxide":
        try:
            binary = find_binary(environment, root)
        except EngineNotAvailable as reason:
            if engine is not None:
                raise
            engine_of_tables, lacking = stand_in, str(reason)
    elif tables:
        lacking = f"{engine} was asked for"
    serves: dict[str, tuple[str, ...]] = dict.fromkeys(ENGINES, ())
    serves[engine_of_tables] += tables
    serves[engine_of_others] += others
    return EnginePlan(binary, serves["dynoxide"], serves["moto"], serves["ministack"], own, lacking)


@dataclass
class LocalServices:
    """The running engines. Enter it, or call `start` and `stop`, from the main thread (see `process.Child`).

    `in_memory` keeps nothing and is fast: for tests. `only` is a part of `ALL` ("dynamodb" brings "streams").
    `on_failure` is called, from another thread, when an engine ends by itself.
    """

    data_dir: Path | str | None = None
    in_memory: bool = False
    only: Collection[str] = ALL
    on_failure: Callable[[str], None] | None = None
    root: Path = ROOT
    #: One of `ENGINES`, or the best that there is.
    engine: str | None = None
    #: What to add to the process's environment; empty until started.
    environment: dict[str, str] = field(default_factory=dict, init=False)
    _engines: list[Engine] = field(default_factory=list, init=False)
    _directory: DataDirectory | None = field(default=None, init=False)
    _plan: EnginePlan = field(default_factory=EnginePlan, init=False)
    _failed: threading.Event = field(default_factory=threading.Event, init=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Raises DataDirectoryInUse, EngineFailed, OSError; nothing is left running then."""
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
        for engine in self._engines:
            engine.child.stop()
        self._engines.clear()
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

    def trim_stream_records(self, older_than: float) -> int:
        """Remove stream records from before `older_than` (Unix seconds), in short steps.

        Returns how many. ministack trims its own.
        """
        if self._directory is None or self._plan.dynoxide is None:
            return 0
        return dynoxide.trim_stream_records(self._directory.database, older_than=older_than)

    @property
    def durable(self) -> bool:
        """Whether the table survives a stop."""
        return not self.in_memory and not self._plan.table_is_volatile

    @property
    def pids(self) -> dict[str, int]:
        return {engine.child.name: engine.child.pid for engine in self._engines}

    @property
    def notices(self) -> list[str]:
        """What the user must be told before the first request."""
        if self._plan.lacking is None or self.in_memory:
            return []
        notice = (
            f"NOTHING WILL BE KEPT: dynoxide is not available ({self._plan.lacking}), so"
            f" {self._plan.stand_in} stands in for DynamoDB, in memory, and S3 is in memory too;"
            " data from earlier runs stays on disk, unseen"
        )
        return [notice]

    @property
    def description(self) -> str:
        """Who serves what, in one line."""
        place = "in memory" if self.in_memory else "on disk"
        parts = []
        if self._plan.dynoxide_services:
            parts.append(f"DynamoDB: dynoxide {place}")
        in_memory = " in memory" if self._plan.table_is_volatile else ""
        for engine, served in (
            ("moto", self._plan.moto_services),
            ("ministack", self._plan.ministack_services),
        ):
            if names := ", ".join(TITLES[name] for name in served if name != "streams"):
                parts.append(f"{names}: {engine}{in_memory}")
        parts += [f"{TITLES[name]}: your endpoint" for name in self._plan.own_services if name != "streams"]
        return "; ".join(parts)

    def _start_engines(self, directory: DataDirectory) -> None:
        wanted = {*self.only, *(("streams",) if "dynamodb" in self.only else ())}
        if unknown := wanted - set(ALL):
            raise ValueError(f"unknown services: {', '.join(sorted(unknown))}")
        self._plan = plan_engines(wanted, os.environ, self.root, self.engine)
        endpoints = self._launch(self._plan, directory)
        for engine in self._engines:
            engine.wait_until_ready()
        # Read after readiness: an engine may have had to change its port.
        urls = {service: engine.endpoint for service, engine in endpoints.items()}
        self.environment = environment_for(urls, os.environ)

        def on_end(what: str) -> None:
            if self.on_failure is not None and not self._failed.is_set():
                self._failed.set()
                self.on_failure(what)

        for engine in self._engines:
            engine.child.watch(on_end)

    def _launch(self, plan: EnginePlan, directory: DataDirectory) -> dict[str, Engine]:
        """Starts all before any is waited for. Returns which engine serves what."""
        serving: dict[str, Engine] = {}
        if plan.dynoxide is not None:
            tables = Dynoxide(plan.dynoxide, directory.database, directory.log("dynoxide"))
            serving |= dict.fromkeys(plan.dynoxide_services, tables)
        if plan.moto_services:
            serving |= dict.fromkeys(plan.moto_services, Moto(directory.log("moto")))
        if plan.ministack_services:
            # A table in memory forgets its pointers: objects on disk would look like orphans and be swept.
            keeps = not (self.in_memory or plan.table_is_volatile)
            names = [MINISTACK_NAMES[name] for name in plan.ministack_services]
            others = Ministack(names, directory.objects if keeps else None, directory.log("ministack"))
            serving |= dict.fromkeys(plan.ministack_services, others)
        for engine in dict.fromkeys(serving.values()):
            self._engines.append(engine)
            engine.start((directory.lock.descriptor,))
        return serving

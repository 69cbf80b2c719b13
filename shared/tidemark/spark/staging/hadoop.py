"""A staging directory on a file system that only Hadoop's Java opens: HDFS, GCS, ABFS, viewfs.

The driver keeps its notes there with the class by which Spark keeps the checkpoint of a streaming query, so a
manifest is as safe as a checkpoint on the same file system. Python tasks do not reach Java: Spark itself
writes and reads their files (`spark/writer/frames.py`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError

from tidemark.spark.options.connection import InvalidOptions
from tidemark.spark.options.write import SHARED_PLACES, WriteOptions
from tidemark.spark.staging.files import Staging, connect_staging

#: Spark 4.1 moved it from the first of these packages to the second.
_PACKAGES: Final = ("streaming", "streaming.checkpointing")
_ABSENT: Final = frozenset({"FileNotFoundException", "NoSuchFileException"})


class StagingFault(Exception):
    """Hadoop's file system failed."""


class StagingForbidden(StagingFault):
    """The user that Spark runs as may not do that."""


class StagingOutOfReach(StagingFault):
    """The file system does not answer."""


_MEANINGS: Final = {
    "AccessControlException": StagingForbidden,
    "ConnectException": StagingOutOfReach,
    "NoRouteToHostException": StagingOutOfReach,
    "SocketTimeoutException": StagingOutOfReach,
    "StandbyException": StagingOutOfReach,
}


def open_staging(spark: Any, options: WriteOptions) -> Staging:
    """For a driver that has a session. Raises InvalidOptions and StagingFault."""
    if options.is_staged_by_tasks:
        return connect_staging(options)
    if getattr(spark, "_jvm", None) is None:
        why = f"over Spark Connect Hadoop's file systems are out of reach; give {SHARED_PLACES}"
        raise InvalidOptions([f"stagingDir {options.staging_dir}: {why}"])
    return HadoopStaging(spark, options.staging_dir)


class HadoopStaging:
    """Raises StagingFault, and InvalidOptions if Hadoop has no such file system."""

    def __init__(self, spark: Any, root: str) -> None:
        self._root = root
        self._jvm = spark._jvm  # noqa: SLF001 - PySpark offers no other way to Hadoop's file systems
        # With what the session was told about file systems, as Spark's own reads and writes have it.
        hadoop = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        with self._explained():
            self._files = self._find_manager().create(self._jvm.org.apache.hadoop.fs.Path(root), hadoop)

    def _find_manager(self) -> Any:
        for package in _PACKAGES:
            found = self._jvm.org.apache.spark.sql.execution
            for part in (*package.split("."), "CheckpointFileManager"):
                found = getattr(found, part)
            if isinstance(found, JavaClass):
                return found
        raise StagingFault("tidemark: this Spark has no CheckpointFileManager where 4.0 to 4.3 have it")

    def path(self, name: str) -> str:
        """HDFS allows no colon in a name, and a producer id may have one."""
        return f"{self._root}/{name.replace(':', '%3A')}"

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.path(name))

    def put_first(self, name: str, data: bytes) -> bytes:
        """The file is renamed to its name where no file has that name yet. One that is refused stays behind
        under a name of its own, so what is there already is looked for first."""
        existing = self.get(name)
        if existing is not None:
            return existing
        with self._explained():
            self._files.mkdirs(self._at(name).getParent())
            stream = self._files.createAtomic(self._at(name), False)
            try:
                stream.write(data)
                stream.close()
            except Py4JJavaError:
                with contextlib.suppress(Py4JJavaError):
                    stream.cancel()
                if self.get(name) is None:
                    raise
        existing = self.get(name)
        if existing is None:
            raise StagingFault(f"tidemark: {self.path(name)} is gone directly after it was written")
        return existing

    def get(self, name: str) -> bytes | None:
        with self._explained():
            try:
                stream = self._files.open(self._at(name))
            except Py4JJavaError as fault:
                if _java_class(fault) in _ABSENT:
                    return None
                raise
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def delete(self, names: Iterable[str]) -> None:
        """Deletes the names; a directory with all its files."""
        with self._explained():
            for name in names:
                self._files.delete(self._at(name))

    def older_than(self, prefix: str, seconds: float) -> list[str]:
        """A directory is as old as the newest file in it, because object stores give directories no time. One
        that has neither a file nor a time stays."""
        limit = 1000 * (time.time() - seconds)
        with self._explained():
            if not self._files.exists(self._at(prefix)):
                return []
            found = {
                status.getPath().getName(): max(
                    self._times_under(status), default=status.getModificationTime() or limit
                )
                for status in self._files.list(self._at(prefix))
            }
        return [f"{prefix}/{name}" for name, newest in found.items() if newest < limit]

    def _times_under(self, status: Any) -> Iterator[float]:
        if not status.isDirectory():
            yield status.getModificationTime()
            return
        for inner in self._files.list(status.getPath()):
            yield from self._times_under(inner)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as fault:
            raise self._explain(fault) from fault

    def _explain(self, fault: Py4JJavaError) -> Exception:
        name = _java_class(fault)
        text = str(fault.java_exception.getMessage() or name)
        said = f"{self._root}: {text.splitlines()[0]}"
        if name == "UnsupportedFileSystemException":
            return InvalidOptions([f"stagingDir {said}"])
        return _MEANINGS.get(name, StagingFault)(f"tidemark: staging at {said}")


def _java_class(fault: Py4JJavaError) -> str:
    name: str = fault.java_exception.getClass().getSimpleName()
    return name

"""The staging of a write: a directory that the driver and all tasks share, or a prefix in S3.

Exactly-once rests on two operations: a file appears whole or not at all, and of two files put
under one name the first wins.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from tidemark.spark.options.write import WriteOptions
from tidemark.spark.storage import s3_client

_PREFIX_BYTES: Final = 4
#: How much of a staged file is asked for at once.
PIECE_BYTES: Final = 4 * 1024 * 1024


def encode_body(file: BinaryIO, body: Any) -> int:
    """Write a body (anything with a length and bytes); how many bytes that took."""
    file.write(len(body).to_bytes(_PREFIX_BYTES, "big"))
    file.write(body)
    return _PREFIX_BYTES + len(body)


def decode_bodies(read: Callable[[int, int], bytes], start: int, length: int) -> Iterator[bytes]:
    """The bodies between two places; `read` is given a place and a number of bytes."""
    held, place, end = b"", start, start + length
    while place < end:
        piece = read(place, min(PIECE_BYTES, end - place))
        place += len(piece)
        held += piece
        low = 0
        while low + _PREFIX_BYTES <= len(held):
            begin = low + _PREFIX_BYTES
            high = begin + int.from_bytes(held[low:begin], "big")
            if high > len(held):
                break
            yield held[begin:high]
            low = high
        held = held[low:]
        if not piece:
            raise EOFError(f"a staged file ends at {place}, before {end}")


#: S3's errors for a name that is taken: with `If-None-Match`, or while another process puts the same name.
_TAKEN: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})
_ABSENT: Final = frozenset({"NoSuchKey", "404", "NotFound"})


class Staging(Protocol):
    """Is opened by the driver and by every task: files of bodies (`encode_body`), and notes of batches."""

    def create(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """A file to write to, which appears under its name once the context ends without error."""

    def read(self, name: str, start: int, length: int) -> bytes: ...

    def put_first(self, name: str, data: bytes) -> bytes:
        """Put `data` unless the name is taken. Returns the content of the name: `data`, or the earlier
        one."""

    def get(self, name: str) -> bytes | None: ...

    def delete(self, names: Iterable[str]) -> None:
        """Missing names are skipped."""

    def older_than(self, prefix: str, seconds: float) -> list[str]:
        """Names in the directory `prefix` that nobody has touched for so long."""


def connect_staging(options: WriteOptions) -> Staging:
    return open_staging(options.staging_dir, options.connection.s3_endpoint, options.connection.region)


def open_staging(directory: str, s3_endpoint: str | None, region: str | None) -> Staging:
    place = urlsplit(directory)
    if place.scheme in ("s3", "s3a"):
        client = s3_client(s3_endpoint, region)
        return BucketStaging(client, place.netloc, place.path.strip("/"))
    return DirectoryStaging(Path(place.path))


class DirectoryStaging:
    def __init__(self, root: Path) -> None:
        self._root = root

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """A link is made only where no name is: of two that try, one succeeds."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
            # Also if the name was there: the process that put it may have been killed before this.
            self._sync_name(path)
        finally:
            temporary.unlink(missing_ok=True)

    def put_first(self, name: str, data: bytes) -> bytes:
        with self.create(name) as file:
            file.write(data)
        return (self._root / name).read_bytes()

    def _sync_name(self, path: Path) -> None:
        """A file's own sync does not keep its name through a loss of power, nor that of a new directory."""
        while path != self._root:
            path = path.parent
            directory = os.open(path, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def get(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def read(self, name: str, start: int, length: int) -> bytes:
        with (self._root / name).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            (self._root / name).unlink(missing_ok=True)

    def older_than(self, prefix: str, seconds: float) -> list[str]:
        limit = time.time() - seconds
        root = self._root / prefix
        found = root.iterdir() if root.is_dir() else iter(())
        return [str(path.relative_to(self._root)) for path in found if path.stat().st_mtime < limit]


class BucketStaging:
    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Writes a local file first: an upload in parts could not be undone as simply."""
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            self._client.upload_fileobj(file, self._bucket, self._prefix + name)

    def put_first(self, name: str, data: bytes) -> bytes:
        try:
            self._client.put_object(**self._at(name), Body=data, IfNoneMatch="*")
        except ClientError as fault:
            if _code(fault) not in _TAKEN:
                raise
            existing = self.get(name)
            if existing is None:
                raise
            return existing
        return data

    def get(self, name: str) -> bytes | None:
        try:
            data: bytes = self._client.get_object(**self._at(name))["Body"].read()
        except ClientError as fault:
            if _code(fault) in _ABSENT:
                return None
            raise
        return data

    def read(self, name: str, start: int, length: int) -> bytes:
        asked = f"bytes={start}-{start + length - 1}"
        data: bytes = self._client.get_object(**self._at(name), Range=asked)["Body"].read()
        return data

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._client.delete_object(**self._at(name))

    def older_than(self, prefix: str, seconds: float) -> list[str]:
        limit = time.time() - seconds
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=f"{self._prefix}{prefix}/"
        )
        return [
            found["Key"].removeprefix(self._prefix)
            for page in pages
            for found in page.get("Contents", [])
            if found["LastModified"].timestamp() < limit
        ]


def _code(fault: ClientError) -> str:
    return str(fault.response.get("Error", {}).get("Code", ""))

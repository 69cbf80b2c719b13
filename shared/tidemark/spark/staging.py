"""The staging of a write: a directory that the driver and all tasks share, or a prefix in S3.

Exactly-once needs two properties: a file appears atomically, and a conditional write lets the first of two
files under one name win.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from tidemark.spark.options.write import WriteOptions
from tidemark.spark.storage import s3_client

_PREFIX_BYTES: Final = 4
#: Bytes of a staged file per read.
PIECE_BYTES: Final = 4 * 1024 * 1024


def encode_body(file: BinaryIO, body: Any) -> int:
    """Write a body (any buffer with a length). Returns the number of bytes written."""
    file.write(len(body).to_bytes(_PREFIX_BYTES, "big"))
    file.write(body)
    return _PREFIX_BYTES + len(body)


def decode_bodies(read: Callable[[int, int], bytes], start: int, length: int) -> Iterator[bytes]:
    """Yield the bodies in `length` bytes from `start`. `read` takes a place and a number of bytes."""
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


#: S3's errors if the name exists (`If-None-Match`), or if another process is writing it.
_TAKEN: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})
_ABSENT: Final = frozenset({"NoSuchKey", "404", "NotFound"})


class DirectoryStaging:
    """Files of bodies (`encode_body`) and notes of batches."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for writing, which appears under its name when the context ends without error: a
        temporary file is linked. A link fails if the name exists, so one of two writers wins."""
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
            # Even if the name existed: its writer may have been killed before the sync.
            self._sync_name(path)
        finally:
            temporary.unlink(missing_ok=True)

    def put_first(self, name: str, data: bytes) -> bytes:
        """Write `data` unless the name exists. Returns the file's content: `data`, or the earlier content."""
        with self.create(name) as file:
            file.write(data)
        return (self._root / name).read_bytes()

    def _sync_name(self, path: Path) -> None:
        """Sync the directories: after a loss of power, a file's own sync does not preserve its name."""
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
        """Return names in the directory `prefix` whose last change is more than `seconds` ago."""
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
        """Write a local file first, then upload it: a failed multipart upload would have to be aborted."""
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            self._client.upload_fileobj(file, self._bucket, self._prefix + name)

    def put_first(self, name: str, data: bytes) -> bytes:
        try:
            self._client.put_object(**self._at(name), Body=data, IfNoneMatch="*")
        except ClientError as fault:
            existing = self.get(name) if _code(fault) in _TAKEN else None
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


Staging = DirectoryStaging | BucketStaging
"""The driver and every task open one."""


def connect_staging(options: WriteOptions) -> Staging:
    place = urlsplit(options.staging_dir)
    if place.scheme in ("s3", "s3a"):
        client = s3_client(options.connection.s3_endpoint, options.connection.region)
        return BucketStaging(client, place.netloc, place.path.strip("/"))
    return DirectoryStaging(Path(place.path))


def _code(fault: ClientError) -> str:
    return str(fault.response.get("Error", {}).get("Code", ""))

"""Reading what the local S3 keeps as files, without asking it.

ministack puts an object's file in its place by a rename, once its bytes are on disk, and only then
acknowledges the object (`local/ministack_server.py`). So a file is the whole object, or it is not there; and
no name is used twice. An object whose file is not there is asked for.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from tidemark.aws.s3 import Send

#: Names as `blobs/store.py` makes them: their files are not those of other names.
_NAME: Final = re.compile(r"(log|snapshot)(/[A-Za-z0-9_-]+){2}(\.bootstrap)?")
_RANGE: Final = re.compile(rb"bytes=(\d+)-(\d+)")


class ObjectFiles:
    """A `Send` of `aws.s3.Objects` that takes objects from a bucket's directory, and leaves the rest to
    another one. It reads on the spot: most often the kernel has the file in memory."""

    def __init__(self, bucket: Path, send: Send) -> None:
        self._bucket = bucket
        self._send = send

    def __call__(self, operation: str, key: str, body: bytes) -> tuple[int, bytes]:
        if operation != "PutObject" and _NAME.fullmatch(key):
            try:
                found = _read(f"{self._bucket}/{key}", body)
            except OSError:
                found = None  # Not there, or not readable: S3 says what that means.
            if found is not None:
                return found
        return self._send(operation, key, body)


def _read(path: str, asked: bytes) -> tuple[int, bytes] | None:
    """None where the file does not have all the bytes that are asked for."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not asked:
            size = os.fstat(file).st_size
            data = os.pread(file, size, 0)
            return (200, data) if len(data) == size else None
        first, last = map(int, _RANGE.fullmatch(asked).groups())  # type: ignore[union-attr]
        part = os.pread(file, last - first + 1, first)
        return (206, part) if len(part) == last - first + 1 else None
    finally:
        os.close(file)

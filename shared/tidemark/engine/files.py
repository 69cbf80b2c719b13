"""`blobs.Blobs` as files: one for each blob, written under a temporary name and renamed when complete."""

from __future__ import annotations

import errno
import hmac
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Final
from urllib.parse import quote, urlencode

from tidemark.blobs import Composition, Stored, objects_of
from tidemark.engine.rows import crc32
from tidemark.protocol.errors import BlobUnreadable, Damaged, StorageUnavailable

#: The path of the signed URLs for downloads and uploads of blobs.
BLOBS_PATH: Final = "/v1/__blobs/"
#: The most bytes that a turn reads itself; larger reads go to a thread. 1 MB takes a few tenths of a ms.
_QUICK_BYTES: Final = 1024 * 1024
_COPIED_BYTES: Final = 1024 * 1024
_KEY_NAME: Final = "url-key"
#: Temporary errors, such as a full disk, which concern all files. Any other error concerns one file.
_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})

_log: Final = logging.getLogger("tidemark")


class WrittenBefore(Exception):
    """A blob that may be written only once exists already."""


class BlobFiles:
    """Blobs below the folder `root`, which is created. `check_fast` is called before slow operations
    (`engine/database.py`). Raises BlobUnreadable if a file cannot be used, StorageUnavailable if none can."""

    def __init__(
        self,
        root: Path,
        check_fast: Callable[[], None] = lambda: None,
        base_url: str = "",
        *,
        read_only: bool = False,
    ) -> None:
        self.root = root
        self.base_url = base_url
        self._check_fast = check_fast
        #: Held while a file name is checked and taken.
        self._placing = threading.Lock()
        self._url_key = b""
        if read_only:
            return
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._url_key = _url_key(root.parent / _KEY_NAME)

    def put(self, key: str, data: bytes) -> None:
        self._check_fast()
        with self.writing(key) as file:
            file.write(data)

    def get(self, key: str, size: int | None = None) -> bytes:
        return self._read(key, 0, size, 1)  # One byte more shows a file that is too long.

    def get_range(self, key: str, first_byte: int, size: int) -> bytes:
        return self._read(key, first_byte, size)

    def _read(self, key: str, first_byte: int, size: int | None, more_bytes: int = 0) -> bytes:
        if size is None or size > _QUICK_BYTES:
            self._check_fast()
        # Without a buffer a file takes half the system calls, but a read may return less.
        with _translated(), self.path_of(key).open("rb", buffering=0) as file:
            file.seek(first_byte)
            data = file.readall() if size is None else file.read(size + more_bytes)
            while size is not None and len(data) < size and (more := file.read(size - len(data))):
                data += more
        return _checked(key, data, size)

    def stored(self, key: str) -> Stored | None:
        try:
            size = self.path_of(key).stat().st_size
        except FileNotFoundError:
            return None
        if size > _QUICK_BYTES:
            self._check_fast()
        crc = 0
        with _translated(), self.path_of(key).open("rb") as file:
            while piece := file.read(_COPIED_BYTES):
                crc = crc32(piece, crc)
        return Stored(size, crc=crc)

    def compose(self, key: str, wanted: Composition) -> int:
        self._check_fast()
        with self.writing(key) as file, _translated(), self.path_of(wanted.source).open("rb") as source:
            file.write(wanted.before)
            crc, left = crc32(wanted.before), wanted.size
            while left:
                piece = source.read(min(left, _COPIED_BYTES))
                if not piece:
                    raise Damaged
                file.write(piece)
                crc = crc32(piece, crc)
                left -= len(piece)
            file.write(wanted.after)
        return crc32(wanted.after, crc)

    @contextmanager
    def writing(self, key: str, *, once: bool = False) -> Iterator[IO[bytes]]:
        """Yield a file for a new blob. If the context succeeds, the file is synced to disk and gets its name.
        With `once`, raises WrittenBefore if the blob exists."""
        path = self.path_of(key)
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        with _translated():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(part, "xb", opener=_private) as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                with self._placing:
                    if once and path.exists():
                        raise WrittenBefore
                    part.replace(path)
            except BaseException:
                with suppress(OSError):
                    part.unlink()
                raise
            _sync_folder(path.parent)

    def delete(self, *keys: str) -> None:
        self._check_fast()
        with _translated():
            for key in objects_of(keys):
                self.path_of(key).unlink(missing_ok=True)

    def delete_prefix(self, prefix: str) -> None:
        """Remove the folder if the prefix ends with a slash; else the files whose names begin with it."""
        self._check_fast()
        with _translated():
            if prefix.endswith("/"):
                with suppress(FileNotFoundError):
                    shutil.rmtree(self.path_of(prefix))
            else:
                path = self.path_of(prefix)
                for found in path.parent.glob(f"{path.name}*"):
                    found.unlink(missing_ok=True)

    def path_of(self, key: str) -> Path:
        """The path of a blob. A key contains only our own ids, offsets and slashes (`blobs.py`)."""
        assert ".." not in key, "a key leads out of the folder"
        return self.root / key

    # --- URLs ---

    def url_to_get(
        self, key: str, seconds: int, content_type: str | None = None, known: Stored | None = None
    ) -> str:
        asked = {} if content_type is None else {"type": content_type}
        if known and known.crc is not None:
            asked |= {"crc": f"{known.crc:08x}"}
        return self._url("GET", key, seconds, asked)

    def url_to_put(self, key: str, seconds: int) -> str:
        return self._url("PUT", key, seconds, {})

    def _url(self, method: str, key: str, seconds: int, asked: dict[str, str]) -> str:
        asked = {"until": str(int(time.time()) + seconds)} | asked
        asked["signature"] = self.signature(method, key, asked)
        return f"{self.base_url}{BLOBS_PATH}{quote(key)}?{urlencode(asked)}"

    def signature(self, method: str, key: str, asked: Mapping[str, str]) -> str:
        """The signature of a URL that allows this method for one blob. `until` is in Unix seconds."""
        signed = f"{method}\n{key}\n{asked.get('until', '')}\n{asked.get('type', '')}"
        signed += f"\n{asked['crc']}" if "crc" in asked else ""
        return hmac.new(self._url_key, signed.encode(), sha256).hexdigest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _checked(key: str, data: bytes, size: int | None) -> bytes:
    if size is not None and len(data) != size:
        _log.error("a stored blob is damaged: %s has %d bytes in place of %d", key, len(data), size)
        raise Damaged
    return data


def _url_key(path: Path) -> bytes:
    """Read the stored key, or create it, so that URLs stay valid for their hour when the server restarts."""
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
    return path.read_bytes()


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that a renamed file survives a power cut. Windows needs no such call."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _log.error("a blob cannot be read or written: %s", error)
        raise (StorageUnavailable if error.errno in _PASSING else BlobUnreadable) from error

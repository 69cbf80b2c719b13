"""The ministack process itself: `python -m tidemark.local.ministack_server <listening descriptor>`.

ministack's own command would do, but for four things: it takes a port and not a socket, it outlives its
parent, its S3 acknowledges an object that is only in the page cache (kill -9 keeps it, a power cut does
not) or, on a full disk, not even there, and its SQS hands on a message after up to 100 ms.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from hypercorn.asyncio import serve
from hypercorn.config import Config
from ministack import app
from ministack.services import s3, sqs

from tidemark.local.process import end_with_parent

KEEP_ALIVE_SECONDS = 75
STOP_SECONDS = 0.2
#: ministack's function that puts an object, or its description, on disk.
WRITER = "_atomic_write"
#: ministack's event for "a message was sent".
SIGNAL = "esm_wake"

#: Directories whose own entry is known to be on disk.
_settled: set[Path] = set()


def main(descriptor: int) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    if s3.S3_PERSIST:
        if not hasattr(s3, WRITER):
            raise SystemExit(f"this ministack has no {WRITER}: install the pinned version")
        setattr(s3, WRITER, _durable_write)
        _settled.add(Path(s3.DATA_DIR))
    _make_prompt()
    asyncio.run(serve(app.app, _configuration(descriptor)))


def _configuration(descriptor: int) -> Config:
    config = Config()
    config.bind = [f"fd://{descriptor}"]
    config.loglevel = "WARNING"
    config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    config.graceful_timeout = STOP_SECONDS
    return config


def _durable_write(fpath: str, data: bytes | str, *, text: bool = False) -> None:
    """In place of ministack's own: the file and its name are on disk when this returns.

    The caller would log an error and acknowledge the object all the same: a failure ends the process.
    """
    try:
        path = Path(fpath)
        unfinished = path.with_name(f"{path.name}.tmp")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(str(data).encode() if text else bytes(data))  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        _sync_directory(path.parent)
        _settle(path.parent)
    except OSError:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


class Arrivals:
    """In place of two names in ministack's SQS: the event that it sets for every message sent, and the clock
    by which a receive that waits looks again."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def set(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._next.wait()


def _make_prompt() -> None:
    if not (hasattr(sqs, SIGNAL) and hasattr(sqs, "asyncio")):
        raise SystemExit(f"this ministack has no {SIGNAL}: install the pinned version")
    arrivals = Arrivals()
    setattr(sqs, SIGNAL, arrivals)
    clock = SimpleNamespace(iscoroutine=asyncio.iscoroutine, sleep=arrivals.sleep)
    setattr(sqs, "asyncio", clock)  # noqa: B010 - it is not declared as an attribute


def _settle(directory: Path) -> None:
    """A directory that was just made exists only once the one above it is on disk as well."""
    if directory in _settled or directory == directory.parent:
        return
    _settle(directory.parent)
    _sync_directory(directory.parent)
    _settled.add(directory)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main(int(sys.argv[1]))

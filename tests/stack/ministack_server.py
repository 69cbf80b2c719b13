"""The ministack process itself: `python -m tests.stack.ministack_server <listening descriptor>`.

ministack's own command would do, but for four things: it takes a port and not a socket, it outlives its
parent, its S3 acknowledges an object that a full disk did not take, and its SQS hands on a message after up
to 100 ms. An object survives kill -9, but no power cut, because it is not synced.
"""

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config
from ministack import app
from ministack.services import s3, sqs

from tests.stack.emulators import end_with_parent

KEEP_ALIVE_SECONDS = 75
_STOP_SECONDS = 0.2
#: ministack's function that puts an object, or its description, on disk.
WRITER = "_atomic_write"
#: ministack's event for "a message was sent".
SIGNAL = "esm_wake"


def main(descriptor: int) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    if s3.S3_PERSIST:
        if not hasattr(s3, WRITER):
            raise SystemExit(f"this ministack has no {WRITER}: install the pinned version")
        setattr(s3, WRITER, _or_end(getattr(s3, WRITER)))
    _make_prompt()
    asyncio.run(serve(app.app, _configuration(descriptor)))


def _configuration(descriptor: int) -> Config:
    config = Config()
    config.bind = [f"fd://{descriptor}"]
    config.loglevel = "WARNING"
    config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    config.graceful_timeout = _STOP_SECONDS
    return config


def _or_end(write: Callable[..., None]) -> Callable[..., None]:
    """ministack would log a failure, and acknowledge the object all the same: here it ends the process."""

    def writing(*arguments: Any, **named: Any) -> None:
        try:
            write(*arguments, **named)
        except OSError:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    return writing


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


if __name__ == "__main__":
    main(int(sys.argv[1]))

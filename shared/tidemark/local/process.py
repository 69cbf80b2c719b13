"""A supervised child process: output in a log file, readiness polled, gone when its parent is gone."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

READY_SECONDS = 60.0
POLL_SECONDS = 0.01
STOP_SECONDS = 3.0
LOG_TAIL_LINES = 5


class EngineFailed(RuntimeError):
    """An engine did not start, or ended by itself; the message names it and shows the end of its log."""


class Child:
    """One engine process.

    Start it from a thread that lives as long as the process (the main thread): the kernel ties the signal of
    the parent's death to the thread that started the child.
    """

    def __init__(self, name: str, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int] = ()
    ) -> None:
        """`descriptors` stay open in the child. Its standard input is a pipe that ends with the parent."""
        self.stop()
        self._stopping.clear()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=dict(environment),
                pass_fds=descriptors,
                # Ctrl-C in a terminal reaches the whole process group: the engines must outlive the requests
                # that are still running, so the parent alone decides when they end.
                start_new_session=True,
            )

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Raises EngineFailed when the process ends first, or is not ready in time."""
        deadline = time.monotonic() + READY_SECONDS
        while not is_ready():
            if self._running().poll() is not None:
                raise EngineFailed(self.describe_end())
            if time.monotonic() > deadline:
                raise EngineFailed(f"{self.name} was not ready in {READY_SECONDS:.0f} s{self._log_tail()}")
            time.sleep(POLL_SECONDS)
        if self._running().poll() is not None:
            # Another process responded at that port.
            raise EngineFailed(self.describe_end())

    def watch(self, on_end: Callable[[str], None]) -> None:
        """Calls `on_end` with a description, from a thread, should the process end without being stopped."""

        def watch() -> None:
            self._running().wait()
            if not self._stopping.is_set():
                on_end(self.describe_end())

        threading.Thread(target=watch, name=f"watch {self.name}", daemon=True).start()

    def stop(self) -> None:
        """Asks, then insists. Nothing is lost by insisting: what was acknowledged is on disk."""
        self._stopping.set()
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def describe_end(self) -> str:
        code = self._running().poll()
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return f"{self.name} {how}{self._log_tail()}"

    def _log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        tail = " | ".join(line.strip() for line in lines[-LOG_TAIL_LINES:] if line.strip())
        return f" (log: {self.log_path}{': ' + tail if tail else ''})"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process


def end_with_parent() -> NoReturn:
    """For a thread of an engine that runs in Python: ends the process when its parent ends.

    Standard input is the pipe of `Child.start`. It carries nothing, and ends when the parent does.
    """
    while os.read(0, 1024):
        pass
    os._exit(0)

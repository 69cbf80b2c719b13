"""More processes that serve requests beside the first one (`WORKERS=n`), on the same table and port.

They share nothing but storage: that is what the design is for, and what Lambda does with its environments.
The first process keeps the engines, the pumps and the scheduled functions.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidemark.local import guard
from tidemark.local.ports import listening_socket

#: What a worker prints once it serves.
READY: Final = "ready"
#: A worker cuts off its requests after a second (`server.GRACE_SECONDS`).
STOP_SECONDS: Final = 5.0


class Workers:
    """Start and stop them from the main thread: the kernel ends a worker with the thread that started it."""

    def __init__(self, count: int, log_level: str, root: Path, fail: Callable[[str], None]) -> None:
        """`fail` is called, from another thread, when a worker ends by itself."""
        self._count = count
        self._log_level = log_level
        self._root = root
        self._fail = fail
        self._processes: list[subprocess.Popen[str]] = []
        self._stopping = threading.Event()

    def start(self, host: str, port: int, on_ready: Callable[[], None]) -> None:
        """Returns at once; `on_ready` is called, from another thread, when all of them serve.

        Raises OSError.
        """
        for _ in range(self._count):
            self._processes.append(self._start(host, port))
        threading.Thread(target=self._wait_until_ready, args=(on_ready,), daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _start(self, host: str, port: int) -> subprocess.Popen[str]:
        with listening_socket(host, port, shared=True) as listener:
            guarded = [sys.executable, "-S", "-E", guard.__file__, str(os.getpid())]
            arguments = [str(listener.fileno()), self._log_level, str(self._root)]
            command = [sys.executable, "-m", "tidemark.local.worker", *arguments]
            return subprocess.Popen(
                [*guarded, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[listener.fileno()],
                # Ctrl-C reaches the whole process group: the first process decides when the others end.
                start_new_session=True,
            )

    def _wait_until_ready(self, on_ready: Callable[[], None]) -> None:
        for process in self._processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY:
                break
        else:
            on_ready()
        for process in self._processes:
            threading.Thread(target=self._watch, args=(process,), daemon=True).start()

    def _watch(self, process: subprocess.Popen[str]) -> None:
        code = process.wait()
        if not self._stopping.is_set():
            self._fail(f"worker {process.pid} ended with code {code}")

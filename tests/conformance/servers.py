"""Servers as separate processes: Tidemark as `make run` starts it, and the Node reference server.

Each gets a free port on loopback, a directory of its own and a process group of its own, so that whatever it
started itself (engine, pump) is stopped and paused together with it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.available import require_engine, require_program
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
REFERENCE_SCRIPT = Path(__file__).with_name("reference_server.mjs")
#: What `make run` starts, by `VIA`.
COMMANDS = {"asgi": ("tidemark.cli", "serve"), "lambda": ("tests.stack",)}
START_SECONDS = 60.0
STOP_SECONDS = 20.0


class ServerDidNotStart(RuntimeError):
    """The process ended, or answered nothing, before the start limit; the message ends with its output."""


class ServerDidNotStop(RuntimeError):
    """The process, or something it started, outlived the stop limit and had to be killed."""


@dataclass
class Server:
    """One server process. Its data directory outlives `stop`: `start` is then a restart on the same data."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    data_dir: Path
    health_path: str
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        return self.data_dir.parent / f"{self.name}.log"

    def start(self) -> None:
        """Raises NotAvailable for `VIA=lambda` without an engine, ServerDidNotStart."""
        if self.environment.get("VIA") == "lambda":
            require_engine()
        own = {"PORT": str(self.port), "DATA_DIR": str(self.data_dir)}
        environment = {**own_environment(), **self.environment, **own}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self._wait_until_healthy(self.process)

    def _wait_until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ServerDidNotStart(f"{self.name} ended with {process.returncode}\n{self.log_tail()}")
            if answers(self.base_url + self.health_path):
                return
            time.sleep(0.05)
        self.kill_group()
        raise ServerDidNotStart(f"{self.name} gave no answer in {START_SECONDS:.0f} s\n{self.log_tail()}")

    def log_tail(self, size: int = 4000) -> str:
        return self.log_path.read_bytes()[-size:].decode(errors="replace")

    def stop(self) -> None:
        """Ask the process to end and see that nothing of its group is left.

        Raises `ServerDidNotStop` if anything had to be killed: an unclean stop is a fault of the server.
        """
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            kill_group(process)
            raise ServerDidNotStop(
                f"{self.name} was still there {STOP_SECONDS:.0f} s after SIGTERM"
            ) from None
        if not wait_until_group_is_gone(process.pid):
            kill_group(process)
            raise ServerDidNotStop(f"{self.name} ended and left processes behind")

    def kill_group(self) -> None:
        if self.process is not None:
            kill_group(self.process)
            self.process = None

    def pause(self) -> None:
        self._signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_group(signal.SIGCONT)

    def _signal_group(self, number: signal.Signals) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, number)


def own_environment() -> dict[str, str]:
    """Without what points at other engines: a test session's own may be in the environment."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}


def answers(url: str) -> bool:
    """Whether anything speaks HTTP there and is content: a 404 of a server without a health route will do."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status < 500)
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_SECONDS)


def wait_until_group_is_gone(group: int, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def tidemark_server(via: str, directory: Path, **environment: str) -> Server:
    """As `make run` starts it, with `VIA=asgi` or `VIA=lambda`; further environment variables as keyword
    arguments."""
    shipped = {"VIA": via, "HOST": "127.0.0.1", "PYTHONMALLOC": "malloc"}
    return Server(
        name=f"tidemark-{via}",
        command=[sys.executable, "-m", *COMMANDS[via]],
        # A test session may have set ALLOW_ANONYMOUS for the functions that it loads itself.
        environment={**shipped, "ALLOW_ANONYMOUS": "", **environment},
        data_dir=directory / "data",
        health_path="/v1/health",
    )


def reference_server(directory: Path, **environment: str) -> Server:
    """The protocol's own Node server with its file store, which syncs every append to disk."""
    return Server(
        name="reference",
        command=[node(), str(REFERENCE_SCRIPT)],
        environment=environment,
        data_dir=directory / "data",
        health_path="/",
    )


def node() -> str:
    """Raises NotAvailable."""
    return require_program("node")


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    server.start()
    try:
        yield server
    except BaseException:
        server.kill_group()
        raise
    server.stop()


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """A directory that a killed process may still hold files in, so that removal must not raise."""
    with tempfile.TemporaryDirectory(prefix="tidemark-", ignore_cleanup_errors=True) as name:
        yield Path(name)

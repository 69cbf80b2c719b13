"""ministack, an emulator of AWS as a process, and the environment that leads boto3 to local engines.

It is S3 and SQS for `VIA=lambda`, and DynamoDB too for some tests. The process
is supervised: its output is in a log file, it is polled until it is ready, and it ends with its parent.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn

from tidemark.server.ports import LOOPBACK, health, listening_socket, port_of

#: boto3 reads these variables; the keys are our names of the services.
VARIABLES: Final = {
    "dynamodb": "AWS_ENDPOINT_URL_DYNAMODB",
    "s3": "AWS_ENDPOINT_URL_S3",
    "sqs": "AWS_ENDPOINT_URL_SQS",
}
#: If one of these variables is set, there are credentials of some kind.
CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
)
DUMMY_CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "tidemark", "AWS_SECRET_ACCESS_KEY": "tidemark"}
DEFAULT_REGION: Final = "us-east-1"
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.01
_STOP_SECONDS = 3.0
LOG_TAIL_LINES = 5


def environment_for(endpoints: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that lead boto3 to `endpoints` (service → URL), to be added to `environment`."""
    added = {VARIABLES[service]: url for service, url in endpoints.items()}
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
    added["AWS_REGION"] = region
    added["AWS_DEFAULT_REGION"] = environment.get("AWS_DEFAULT_REGION") or region
    if not any(environment.get(name) for name in CREDENTIALS):
        added |= DUMMY_CREDENTIALS
    if {name.lower() for name, value in environment.items() if value} & {"http_proxy", "all_proxy"}:
        # botocore would ask a proxy even for a loopback address.
        bypassed = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
        value = ",".join(filter(None, (bypassed, "127.0.0.1", "localhost")))
        added |= {"no_proxy": value, "NO_PROXY": value}
    return added


#: The clone.
ROOT: Final = Path(__file__).resolve().parents[2]
MINISTACK_SERVER = "tests.stack.ministack_server"
#: The emulator gets these variables. It gets none of the user's AWS_* but the credentials: it verifies the
#: presigned URLs that are signed with them.
INHERITED = (
    *("PATH", "HOME", "LANG", "LC_ALL", "PYTHONHOME", "VIRTUAL_ENV", "TMPDIR"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)


class Ministack:
    """A running ministack for `services` (its own names). With `s3_directory`, objects are kept there."""

    def __init__(self, services: Collection[str], s3_directory: Path | None, log_path: Path) -> None:
        self.services = services
        self.s3_directory = s3_directory
        self.child = Child("ministack", log_path)
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def start(self, descriptors: tuple[int, ...] = ()) -> None:
        """Returns at once; `wait_until_ready` tells whether it works. Raises EngineFailed."""
        if find_spec("ministack") is None:
            raise EngineFailed("ministack is not installed; `make run` installs it (requirements/local.txt)")
        with listening_socket(LOOPBACK, 0) as listener:
            self.port = port_of(listener)
            command = [sys.executable, "-m", MINISTACK_SERVER, str(listener.fileno())]
            self.child.start(command, self._environment(), (*descriptors, listener.fileno()))

    def wait_until_ready(self) -> None:
        """Raises EngineFailed."""
        self.child.wait_until(lambda: health(LOOPBACK, self.port, "/_ministack/health") == 200)

    def _environment(self) -> Mapping[str, str]:
        known = os.environ | environment_for({}, os.environ)
        return {
            **{name: known[name] for name in INHERITED if known.get(name)},
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "SERVICES": ",".join(sorted(self.services)),
            "GATEWAY_PORT": str(self.port),
            "MINISTACK_HOST": LOOPBACK,
            "LOG_LEVEL": "WARNING",
            "IOT_MTLS_ENABLED": "0",
            "SFTP_ENABLED": "0",
            # It removes containers that it takes for its own: let it find no Docker at all.
            "DOCKER_HOST": "unix:///nonexistent",
            "S3_PERSIST": "0" if self.s3_directory is None else "1",
            "S3_DATA_DIR": str(self.s3_directory or "/nonexistent"),
        }


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
        deadline = time.monotonic() + _READY_SECONDS
        while not is_ready():
            if self._running().poll() is not None:
                raise EngineFailed(self.describe_end())
            if time.monotonic() > deadline:
                raise EngineFailed(f"{self.name} was not ready in {_READY_SECONDS:.0f} s{self._log_tail()}")
            time.sleep(_POLL_SECONDS)
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
            process.wait(_STOP_SECONDS)
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
    """Ends the process when its parent ends. A thread of an engine that runs in Python calls it.

    Standard input is the pipe of `Child.start`. It carries nothing, and ends when the parent does.
    """
    while os.read(0, 1024):
        pass
    os._exit(0)

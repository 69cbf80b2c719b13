"""ministack: S3 and SQS in one Python process, and DynamoDB for tests that compare engines."""

from __future__ import annotations

import http.client
import importlib.util
import os
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from tidemark.local.endpoints import credentials_of
from tidemark.local.process import Child, EngineFailed
from tidemark.server.ports import LOOPBACK, listening_socket, port_of

PACKAGE = "ministack"
LAUNCHER = "tidemark.local.ministack_server"
#: Not AWS_*: those of the user must neither reach the emulator nor be needed by it. The credentials alone
#: do: presigned URLs are signed with them, and it verifies those.
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TMPDIR")

#: An access key of twelve digits is the account that it acts for; every other one acts for this account.
ACCOUNT = re.compile("[0-9]{12}")
DEFAULT_ACCOUNT = "000000000000"


def is_installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


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

    @property
    def buckets(self) -> Path:
        """With `s3_directory`: each bucket is a directory in here, and each object a file by its key."""
        assert self.s3_directory is not None
        access_key = credentials_of(os.environ).get("AWS_ACCESS_KEY_ID", "")
        return self.s3_directory / (access_key if ACCOUNT.fullmatch(access_key) else DEFAULT_ACCOUNT)

    def start(self, descriptors: tuple[int, ...] = ()) -> None:
        """Returns at once; `wait_until_ready` tells whether it works. Raises EngineFailed."""
        if not is_installed():
            raise EngineFailed("ministack is not installed; `make run` installs it (requirements/local.txt)")
        with listening_socket(LOOPBACK, 0) as listener:
            self.port = port_of(listener)
            command = [sys.executable, "-m", LAUNCHER, str(listener.fileno())]
            self.child.start(command, self._environment(), (*descriptors, listener.fileno()))

    def wait_until_ready(self) -> None:
        """Raises EngineFailed."""
        self.child.wait_until(self._is_ready)

    def _environment(self) -> Mapping[str, str]:
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        return (
            environment
            | credentials_of(os.environ)
            | {
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
        )

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=5)
        try:
            connection.request("GET", "/_ministack/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

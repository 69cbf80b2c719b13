"""moto: DynamoDB, S3 and SQS in one Python process, in memory.

A development dependency (requirements/dev.txt), and the emulator that most Python tests for AWS stand on: an
independent judge of what the embedded engine answers in DynamoDB's protocol.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import sys
from pathlib import Path

from tidemark.local.endpoints import DUMMY_CREDENTIALS
from tidemark.local.ministack import INHERITED
from tidemark.local.process import Child
from tidemark.server.ports import LOOPBACK, listening_socket, port_of

#: moto itself, and what its server stands on.
PACKAGES = ("moto", "flask", "flask_cors")
LAUNCHER = "tidemark.local.moto_server"


def is_installed() -> bool:
    return all(importlib.util.find_spec(package) is not None for package in PACKAGES)


class Moto:
    """A running moto, for whichever services it is asked for."""

    def __init__(self, log_path: Path) -> None:
        self.child = Child("moto", log_path)
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def start(self, descriptors: tuple[int, ...] = ()) -> None:
        """Returns at once; `wait_until_ready` tells whether it works."""
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        with listening_socket(LOOPBACK, 0) as listener:
            self.port = port_of(listener)
            command = [sys.executable, "-m", LAUNCHER, str(listener.fileno())]
            self.child.start(command, inherited | DUMMY_CREDENTIALS, (*descriptors, listener.fileno()))

    def wait_until_ready(self) -> None:
        """Raises EngineFailed."""
        self.child.wait_until(self._is_ready)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=5)
        try:
            connection.request("GET", "/moto-api/data.json")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

"""ministack, an emulator of AWS as a process, and the environment that leads boto3 to local engines.

It is S3 and SQS for `VIA=lambda`, and DynamoDB too for the fixture `tidemark_aws` and for tests.
"""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tidemark.local.process import Child, EngineFailed
from tidemark.server.ports import LOOPBACK, listening_socket, port_of

#: Service name here → the variable boto3 reads.
VARIABLES: Final = {
    "dynamodb": "AWS_ENDPOINT_URL_DYNAMODB",
    "s3": "AWS_ENDPOINT_URL_S3",
    "sqs": "AWS_ENDPOINT_URL_SQS",
}
#: Any of these says that there are credentials, whatever kind.
CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
)
DUMMY_CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "tidemark", "AWS_SECRET_ACCESS_KEY": "tidemark"}
DEFAULT_REGION: Final = "us-east-1"


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


def credentials_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The credentials that clients will sign with, as far as the environment tells: an emulator that verifies
    presigned URLs must know it."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    given = {name: environment[name] for name in names if environment.get(name)}
    return given if any(environment.get(name) for name in CREDENTIALS) else dict(DUMMY_CREDENTIALS)


MINISTACK_SERVER = "tidemark.local.ministack_server"
#: Not AWS_*: those of the user must neither reach the emulator nor be needed by it. The credentials alone
#: do: presigned URLs are signed with them, and it verifies those.
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TMPDIR")


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
        self.child.wait_until(self._is_ready)

    def _environment(self) -> Mapping[str, str]:
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        return {
            **inherited,
            **credentials_of(os.environ),
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

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=5)
        try:
            connection.request("GET", "/_ministack/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

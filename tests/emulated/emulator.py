"""An emulated AWS: one process of its own, with what the shims bridge."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3

from tests.conformance.servers import ROOT, Server
from tests.ports import free_port

SAM = ROOT / ".venv-sam" / "bin"
REGION = "us-east-1"
#: What the emulator takes for the account's root; its policies are those of nobody.
ROOT_KEY = "test"


class Emulator:
    """Running emulated AWS. `stacks` are the names of stacks that get an address of their own."""

    def __init__(self, directory: Path, stacks: Sequence[str], *, enforce_iam: bool = False) -> None:
        self.ports = {stack: free_port() for stack in stacks}
        self.server = Server(
            name="ministack",
            command=[sys.executable, "-m", "tests.emulated.server"],
            environment={},
            data_dir=directory / "emulator",
            health_path="/_ministack/health",
        )
        self.server.environment = {
            "GATEWAY_PORT": str(self.server.port),
            "STACK_PORTS": ",".join(f"{port}={stack}" for stack, port in self.ports.items()),
            "SAM_PYTHON": str(SAM / "python"),
            "MINISTACK_HOST": "localhost",
            "AUTH": str(enforce_iam).lower(),
            "LOG_LEVEL": "WARNING",
            "IOT_MTLS_ENABLED": "0",
            "SFTP_ENABLED": "0",
            # It removes containers that it takes for its own: let it find no Docker at all.
            "DOCKER_HOST": "unix:///nonexistent",
            "S3_PERSIST": "0",
            # A function's process is kept for the whole run: its start takes seconds of a busy machine.
            "LAMBDA_WARM_TTL_SECONDS": "3600",
            "TMPDIR": str(directory),
        }

    @property
    def is_running(self) -> bool:
        return self.server.process is not None and self.server.process.poll() is None

    @property
    def endpoint(self) -> str:
        return self.server.base_url

    def url_of(self, stack: str) -> str:
        """The base URL for clients of a stack's HTTP API."""
        return f"http://127.0.0.1:{self.ports[stack]}"

    @property
    def environment(self) -> dict[str, str]:
        """For AWS's own tools and SDKs, as the account's root."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ROOT_KEY,
            "AWS_SECRET_ACCESS_KEY": ROOT_KEY,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            aws_access_key_id=ROOT_KEY,
            aws_secret_access_key=ROOT_KEY,
            region_name=REGION,
        )

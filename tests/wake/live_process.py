"""The live function's process, started as Lambda Web Adapter starts it."""

import http.client
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port
from tests.support import World
from tests.waiting import PATIENCE_SECONDS, until
from tests.wake.support import ROOT, make_prefix, make_queues
from tidemark.aws.sqs import Queues


@dataclass
class Function:
    """The running process."""

    port: int
    process: subprocess.Popen[bytes]
    queues: Queues
    health: int = 200

    @contextmanager
    def get(self, target: str, headers: Mapping[str, str] = {}) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        with closing(connection):
            connection.request("GET", target, headers=dict(headers))
            with connection.getresponse() as response:
                yield response

    def status(self, target: str) -> int:
        with self.get(target) as response:
            return response.status

    def is_up(self) -> bool:
        assert self.process.poll() is None, "it has ended by itself"
        try:
            return self.status("/v1/health") == self.health
        except OSError:
            return False


@contextmanager
def running(
    world: World,
    *,
    sse_seconds: int = 55,
    long_poll_seconds: int = 25,
    variables: Mapping[str, str] | None = None,
    health: int = 200,
) -> Iterator[Function]:
    prefix, port = make_prefix(), free_port()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "AWS_LWA_PORT": str(port),
        **world.variables,
        "QUEUE_PREFIX": prefix,
        "SSE_SECONDS": str(sse_seconds),
        "LONG_POLL_SECONDS": str(long_poll_seconds),
        **(variables or {}),
    }
    process = subprocess.Popen([ROOT / "functions" / "live" / "run.sh"], env=environment)
    function = Function(port, process, make_queues(prefix), health)
    try:
        until(function.is_up)
        yield function
    finally:
        process.kill()
        process.wait()
        for url in function.queues.all():
            function.queues.delete(url)


def read_until(response: http.client.HTTPResponse, wanted: bytes) -> None:
    received = b""
    while wanted not in received:
        chunk = response.read1()
        assert chunk, f"the events ended without {wanted!r}: {received!r}"
        received += chunk

"""The container's command in a clean environment: the files that the Dockerfile copies, the packages of its
lock, Python.

There is no Docker here. The command line, files, packages, variables and signals are the Dockerfile's; the
base image, and the packages for its Python and processor, are not.
"""

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import IO, Any

import pytest

from tests.infra.test_locks import pins
from tests.infra.test_template import FUNCTION_GLOBALS, ROOT
from tests.ports import free_port
from tests.stack.engines import LocalServices
from tests.support import TEXT, Process, World, a_key, make_world
from tests.waiting import PATIENCE_SECONDS, until
from tests.wake.support import make_prefix, make_queues
from tidemark.aws.clock import CLOCK
from tidemark.aws.sqs import Queues
from tidemark.log.schema import FORMAT_EPOCH, encode_format
from tidemark.protocol.stream_key import StreamKey

pytestmark = pytest.mark.slow

DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
COMMANDS: list[list[str]] = [
    json.loads(each) for each in re.findall(r"^ *CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
]
COMMAND = COMMANDS[-1]
HEALTH = json.loads(re.search(r"HEALTHCHECK .* CMD (\[.*\])", DOCKERFILE)[1])  # type: ignore[index]


@dataclass
class Container:
    """The running command."""

    port: int
    process: subprocess.Popen[bytes]
    queues: Queues
    environment: dict[str, str]
    output: IO[bytes]

    def ask(self, target: str, method: str = "GET") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        with closing(connection):
            connection.request(method, target, b"", {"Content-Type": "text/plain"})
            response = connection.getresponse()
            return response.status, response.read()

    def is_healthy(self) -> bool:
        """By the Dockerfile's own health check."""
        assert self.process.poll() is None, self.log()
        return subprocess.run(HEALTH, env=self.environment, capture_output=True, check=False).returncode == 0

    def log(self) -> str:
        self.output.seek(0)
        return self.output.read().decode()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`/app`, the packages of the lock as they are installed here, and a Python that sees nothing else."""
    root = tmp_path_factory.mktemp("image")
    assert "COPY shared/tidemark /app/tidemark" in DOCKERFILE
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "shared" / "tidemark", root / "app" / "tidemark", ignore=ignored)
    packages, installed = root / "packages", Path(sysconfig.get_path("platlib"))
    packages.mkdir()
    for name in pins(ROOT / "requirements" / "container.txt"):
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files if not file.parts[0].startswith((".", "__pycache__"))}:
            if not (packages / top).exists():
                (packages / top).symlink_to(installed / top)
    python = root / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -s -B "$@"\n')
    python.chmod(0o755)
    return root


@pytest.fixture
def world(services: LocalServices) -> World:
    return make_world(services)


@pytest.fixture
def stream(world: World) -> tuple[Process, StreamKey, str]:
    """Another process that writes, and the stream's key and path."""
    writer, key = world.process(clock=CLOCK.now_ms), a_key("many")
    writer.create(key, content_type=TEXT)
    return writer, key, f"/v1/stream/{key.stream_id}"


@pytest.fixture
def start(services: LocalServices, world: World, image: Path, tmp_path: Path) -> Iterator[Any]:
    started: list[Container] = []

    def start(**variables: str) -> Container:
        prefix, port = make_prefix(), free_port()
        own = {"HOST": "127.0.0.1", "PORT": str(port), "QUEUE_PREFIX": prefix}
        environment = {
            **services.environment,
            "PATH": f"{image / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": str(image / "packages"),
            **world.variables,
            **own,
            **variables,
        }
        output = (tmp_path / f"log-{port}").open("w+b")
        found = shutil.which(COMMAND[0], path=environment["PATH"])
        assert found
        process = subprocess.Popen(
            [found, *COMMAND[1:]], env=environment, cwd=image / "app", stdout=output, stderr=output
        )
        started.append(Container(port, process, make_queues(prefix), environment, output))
        until(started[-1].is_healthy)
        return started[-1]

    yield start
    for container in started:
        container.process.kill()
        container.process.wait()
        container.output.close()
        for url in container.queues.all():
            container.queues.delete(url)


def test_with_a_volume_it_is_a_single_node_that_keeps_its_streams(start: Any, tmp_path: Path) -> None:
    """Without AWS: what was acknowledged is there after kill -9."""
    folder = str(tmp_path / "volume")
    volume = {"DATA_DIR": folder, "ALLOW_ANONYMOUS": "true", "AWS_ENDPOINT_URL": "http://nowhere"}
    first = start(**volume)
    assert "in memory" not in first.log()
    assert first.ask("/v1/stream/kept", "PUT")[0] == 201
    first.process.kill()
    first.process.wait()
    second = start(**volume)
    assert second.ask("/v1/stream/kept?offset=-1") == (200, b"")
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(PATIENCE_SECONDS) == 0


def test_at_sigterm_a_waiting_reader_gets_its_response_and_new_connections_are_refused(
    start: Any, stream: tuple[Process, StreamKey, str]
) -> None:
    """The server drains: running requests may finish. Docker and ECS send SIGTERM first."""
    assert "STOPSIGNAL SIGTERM" in DOCKERFILE
    container = start(SSE_SECONDS="4", LONG_POLL_SECONDS="4", DRAIN_SECONDS="600")
    with ThreadPoolExecutor() as pool:
        queries = ("?offset=-1&live=sse", "?offset=now&live=long-poll")
        sse, long_poll = (pool.submit(container.ask, stream[2] + query) for query in queries)
        until(lambda: list(container.queues.all()))
        container.process.send_signal(signal.SIGTERM)
        status, body = sse.result()
        assert (status, body.endswith(b"\n\n"), long_poll.result()[0]) == (200, True, 204)
    assert container.process.wait(PATIENCE_SECONDS) == 0, container.log()
    assert list(container.queues.all()) == [], "it leaves no queue behind"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", container.port))


def test_a_request_that_does_not_end_within_the_drain_time_gets_a_complete_response(
    start: Any, stream: tuple[Process, StreamKey, str]
) -> None:
    container = start(SSE_SECONDS="300", DRAIN_SECONDS="0.5")
    connection = http.client.HTTPConnection("127.0.0.1", container.port, timeout=PATIENCE_SECONDS)
    with closing(connection):
        connection.request("GET", f"{stream[2]}?offset=-1&live=sse")
        response = connection.getresponse()
        container.process.send_signal(signal.SIGTERM)
        assert response.read().endswith(b"\n\n"), "a whole response: the client comes back"
    assert container.process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"HOST": "0.0.0.0"}, r"Listening on 0\.0\.0\.0 would be open to everybody"),
        ({"DRAIN_SECONDS": "soon"}, "DRAIN_SECONDS must be a number"),
        ({}, "This release is too old for the stored data"),
    ],
    ids=["open", "invalid", "too old"],
)
def test_a_failed_start_is_one_line(start: Any, world: World, variables: dict[str, str], said: str) -> None:
    if not variables:
        world.process().stores.table.put(encode_format(FORMAT_EPOCH + 1))
    with pytest.raises(AssertionError, match=f"tidemark: {said}") as failure:
        start(**variables)
    assert "Traceback" not in str(failure.value)


def test_the_image_holds_what_the_server_needs_and_not_the_emulators() -> None:
    locked = pins(ROOT / "requirements" / "container.txt")
    deployed = pins(ROOT / "requirements" / "layer-otel.txt")
    assert deployed.items() <= locked.items(), "the same versions as in the layer"
    assert locked.keys() - deployed.keys() == {"httptools", "uvloop", "websockets"}
    assert "--require-hashes" in DOCKERFILE
    assert "USER tidemark" in DOCKERFILE
    runtime = FUNCTION_GLOBALS["Runtime"].removeprefix("python")
    assert f"FROM python:{runtime}-slim" in DOCKERFILE
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*", "nothing is sent to Docker that is not named"
    for source in re.findall(r"^COPY (\S+)", DOCKERFILE, re.MULTILINE):
        assert f"!{source}" in ignored
        assert (ROOT / source).exists()

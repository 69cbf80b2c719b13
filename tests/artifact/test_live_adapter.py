"""The built live function behind the Web Adapter's contract.

The adapter itself is a layer of AWS's, and is not here. It starts the function's handler, `run.sh`; asks for
AWS_LWA_READINESS_CHECK_PATH until the status is below 500; hands each invocation on as one request with
Lambda's context in a header; and sends the response on as it comes. The tests do the same.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from benchmarks.layer import BUILD, LAYER, link_natives
from tests.infra.test_template import FUNCTIONS
from tests.ports import free_port
from tests.stack.engines import LocalServices
from tests.support import TEXT, World, a_key
from tests.waiting import until
from tests.wake.live_process import Function
from tests.wake.support import make_prefix, make_queues
from tidemark.aws.clock import CLOCK

pytestmark = pytest.mark.artifact

#: Without those that the stack computes.
VARIABLES = {
    name: value
    for name, value in FUNCTIONS["LiveFunction"]["Environment"]["Variables"].items()
    if isinstance(value, str)
}
#: `python3` of the runtime: nothing that is installed on this machine, but the standard library.
PYTHON = """#!/bin/sh
exec {python} -S -s -B "$@"
"""


@dataclass
class Adapted(Function):
    """The function's process, as the adapter sees it."""

    output: IO[bytes] = field(kw_only=True)

    def invoke(self, target: str) -> AbstractContextManager[http.client.HTTPResponse]:
        """One invocation: a connection that is kept by nobody, and the headers of the adapter."""
        context = {
            "request_id": "8f5076ae-1e5b-4c4e-a8f6-5e43c0b1e1a7",
            "deadline": 4_102_444_800_000,
            "invoked_function_arn": "arn:aws:lambda:us-east-1:123456789012:function:live",
            "env_config": {"function_name": "live", "memory": 512, "version": "$LATEST"},
        }
        headers = {
            "x-amzn-lambda-context": json.dumps(context),
            "x-amzn-request-context": json.dumps({"http": {"method": "GET", "path": target}}),
            "x-amzn-trace-id": "Root=1-5759e988-bd862e3fe1be46a994272793",
        }
        return self.get(target, headers)

    def is_ready(self) -> bool:
        """The adapter's readiness check: no header of its own, any status below 500."""
        assert self.process.poll() is None, f"run.sh has ended: {self.log()}"
        try:
            return self.status(VARIABLES["AWS_LWA_READINESS_CHECK_PATH"]) < 500
        except OSError:
            return False

    def log(self) -> str:
        self.output.seek(0)
        return self.output.read().decode()


@pytest.fixture
def start(services: LocalServices, world: World, tmp_path: Path) -> Iterator[Any]:
    """Starts the built function with the template's own variables, and nothing of the test's."""
    functions: list[Adapted] = []
    natives, binaries = tmp_path / "natives", tmp_path / "bin"
    natives.mkdir()
    link_natives(natives)
    binaries.mkdir()
    (binaries / "python3").write_text(PYTHON.format(python=sys.executable))
    (binaries / "python3").chmod(0o755)

    def start(**variables: str) -> Adapted:
        prefix, port = make_prefix(), free_port()
        environment = {
            **services.environment,
            **VARIABLES,
            "AWS_LWA_PORT": str(port),
            "PATH": f"{binaries}:/usr/bin:/bin",
            # In Lambda the layer is at /opt/python, where run.sh looks by itself.
            "PYTHONPATH": f"{natives}:{LAYER}",
            "TABLE_NAME": world.table_name,
            "BUCKET_NAME": world.bucket_name,
            "QUEUE_PREFIX": prefix,
            "ALLOW_ANONYMOUS": "true",
            **variables,
        }
        output = (tmp_path / f"log-{port}").open("w+b")
        process = subprocess.Popen(
            [BUILD / "LiveFunction" / FUNCTIONS["LiveFunction"]["Handler"]],
            env=environment,
            cwd="/",
            stdout=output,
            stderr=output,
        )
        function = Adapted(port, process, make_queues(prefix), output=output)
        functions.append(function)
        until(function.is_ready)
        return function

    yield start
    for function in functions:
        function.process.send_signal(signal.SIGCONT)
        function.process.kill()
        function.process.wait()
        function.output.close()
        for url in function.queues.all():
            function.queues.delete(url)


def test_an_environment_that_was_frozen_goes_on(start: Any, world: World) -> None:
    """Lambda stops the process between two invocations, for minutes; here by a signal. How responses are
    streamed, and what is left at the end, is in `wake/test_live_function.py`: it is the same `run.sh`."""
    function = start(SSE_SECONDS="1")
    world.process(clock=CLOCK.now_ms).create(key := a_key("live"), content_type=TEXT)
    target = f"/v1/stream/{key.stream_id}?offset=-1&live=sse"
    for _ in range(2):
        with function.invoke(target) as response:
            assert response.read().endswith(b"\n\n")
        function.process.send_signal(signal.SIGSTOP)
        time.sleep(2)
        function.process.send_signal(signal.SIGCONT)
    with function.invoke(target) as response:
        assert response.status == 200
        assert response.read().endswith(b"\n\n")


def test_the_start_script_finds_the_layer_where_lambda_puts_it() -> None:
    """The template's handler, port and wrapper are those that the adapter documents."""
    script = (BUILD / "LiveFunction" / "run.sh").read_text()
    assert 'PYTHONPATH="/opt/python${PYTHONPATH:+:$PYTHONPATH}"' in script
    assert '--port "${AWS_LWA_PORT:-8080}"' in script
    assert os.access(BUILD / "LiveFunction" / "run.sh", os.X_OK)
    assert VARIABLES["AWS_LAMBDA_EXEC_WRAPPER"] == "/opt/bootstrap"
    assert VARIABLES["AWS_LWA_INVOKE_MODE"] == "response_stream"

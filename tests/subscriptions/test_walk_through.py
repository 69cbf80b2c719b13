"""docs/subscriptions.md as it is printed: a worker in Python, and a webhook in TypeScript."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.servers import ROOT, Server, node, running, tidemark_server
from tests.ports import free_port
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "subscriptions.md").read_text()
CREATE, HOOK, SHARE = re.findall(
    r"test_walk_through\.py -->\n```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
)
# The page makes an environment for it (`test_printed_examples.py`); here it runs in this one.
(WORK,) = re.findall(r"^examples/bin/(python docs/examples/pull_worker\.py .*)$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module", params=["asgi", "lambda"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tidemark_server(request.param, tmp_path_factory.mktemp("server"))) as made:
        yield made


def run(text: str, server: Server, hook: str = "http://127.0.0.1:8080") -> str:
    script = text.replace("http://127.0.0.1:4437", server.base_url).replace("http://127.0.0.1:8080", hook)
    script = script.replace("curl ", "curl --fail-with-body -s ").replace("python ", f"{sys.executable} ")
    done = subprocess.run(
        ["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr + server.log_tail()
    return done.stdout


def test_a_worker_that_waits_is_woken_and_gets_what_is_new(server: Server) -> None:
    run(CREATE, server)
    sent = [json.loads(line)["message"]["send"] for line in run(WORK, server).splitlines()]
    assert sorted(sent) == ["invoice", "welcome"]


def test_a_worker_is_woken_by_what_comes_while_it_waits(server: Server) -> None:
    """By the wake event: its first claim has found nothing."""
    json_body = "-H 'Content-Type: application/json' -d '{\"send\": \"late\"}'"
    command = f"curl -X PUT {json_body} {server.base_url}/v1/stream/tasks/late"
    later = threading.Timer(2.0, run, (command, server))
    later.start()
    assert [json.loads(line)["message"]["send"] for line in run(WORK, server).splitlines()] == ["late"]
    later.join()


def test_a_worker_takes_and_is_done(server: Server) -> None:
    taken = json.loads('{"messages"' + run(SHARE, server).rpartition('{"messages"')[2])
    assert [(each["data"]["n"], each["delivery"]) for each in taken["messages"]] == [(2, 1)]


def test_a_webhook_verifies_processes_and_is_done(server: Server, tmp_path: Path) -> None:
    port = free_port()
    # A file without types runs in every Node under this name.
    program = tmp_path / "worker.mjs"
    program.write_text((ROOT / "docs" / "examples" / "webhook-worker.ts").read_text())
    command, env = [node(), str(program)], {"SERVER": server.base_url, "PORT": str(port)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
            run(HOOK, server, f"http://127.0.0.1:{port}")
            assert json.loads(worker.stdout.readline()) == {"stream": "orders/1", "message": {"total": 12}}
            asked = f"curl {server.base_url}/v1/stream/__ds/subscriptions/hook"
            until(lambda: '"acked_offset":"0000000000000014"' in run(asked, server))
        finally:
            worker.kill()

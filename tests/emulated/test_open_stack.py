"""The deployed template without authorization: the official suite and other clients, through the HTTP API."""

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.conformance.outcome import TESTS
from tests.conformance.run import counted, indented, run_suite
from tests.conformance.servers import own_environment, running, temporary_directory
from tests.emulated.deployment import Stack, deploy
from tests.emulated.emulator import Emulator

pytestmark = pytest.mark.emulated

#: An HTTP API sends complete responses: what the suite asks of a stream that is still being sent cannot hold.
BUFFERED = {
    "SSE Mode should have correct SSE headers (no Content-Length, proper Cache-Control)":
        "an HTTP API sends an event stream as one complete response, with its Content-Length",
}  # fmt: skip
#: The suite's webhooks are on plain HTTP on this machine. `test_a_webhook_is_called_by_https_alone` holds the
#: rule; `make conformance` runs these cases where the server is on this machine too.
REFUSED = dict.fromkeys(
    (
        "Reserved subscription APIs creates and idempotently re-confirms a webhook subscription",
        "Reserved subscription APIs webhook synchronous done auto-acks the wake snapshot",
        "Reserved subscription APIs webhook callback acks and fences stale wake generations",
        "Reserved subscription APIs adds and removes explicit subscription streams",
    ),
    "a deployed stack calls webhooks by HTTPS on the public internet alone",
)
EXPECTED = BUFFERED | REFUSED
#: The suite ends a property after ten seconds, and calls it failed if it was not tried once by then.
INTERRUPTED = "Property interrupted after 0 tests"
#: So many of its readers come at once.
READERS = 12


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with temporary_directory() as directory:
        emulator = Emulator(directory, ["open"])
        with running(emulator.server):
            yield emulator


@pytest.fixture(scope="module")
def stack(emulator: Emulator) -> Stack:
    return deploy(emulator, "open", {"AllowAnonymous": "true", "Edge": "false", "SseSeconds": "3"})


@pytest.fixture
def client(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.url, timeout=60, trust_env=False) as client:
        yield client


def test_a_webhook_is_called_by_https_alone(client: httpx.Client) -> None:
    """The first one makes the key that signs, which the stack keeps in SSM."""

    def subscribe(url: str) -> httpx.Response:
        asked = {"type": "webhook", "streams": ["events"], "webhook": {"url": url}}
        return client.put("/v1/stream/__ds/subscriptions/hook", json=asked)

    refused = subscribe("http://127.0.0.1:1/hook")
    assert refused.status_code == 400
    assert "https://" in refused.json()["error"]["message"]
    made = subscribe("https://worker.example.com/hook")
    assert made.status_code == 201
    keys = client.get("/v1/stream/__ds/jwks.json").json()["keys"]
    assert made.json()["webhook"]["signing"]["kid"] in {each["kid"] for each in keys}


def test_the_command_rotates_the_signing_key(client: httpx.Client, emulator: Emulator, stack: Stack) -> None:
    """As `make rotate-keys STACK=…` does: it finds table and parameters by the stack's outputs."""

    def signing_keys(*arguments: str) -> list[str]:
        ran = subprocess.run(
            [sys.executable, "-m", "tidemark.ops.signing_keys", "--stack", stack.name, *arguments],
            env=own_environment() | emulator.environment,
            capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return re.findall(r"^(ds_[\w-]+)  made", ran.stdout, re.MULTILINE)

    before = signing_keys("list")
    after = signing_keys("rotate")
    assert after[:-1] == before
    keys = client.get("/v1/stream/__ds/jwks.json").json()["keys"]
    assert [each["kid"] for each in keys] == after
    if before:
        assert signing_keys("remove", before[0]) == after[1:]


def start_environments(stack: Stack) -> None:
    """One process of the read function for each of the suite's readers: each waits, so none is used twice."""
    httpx.put(
        f"{stack.url}/v1/stream/warm", headers={"Content-Type": "text/plain"}, timeout=60, trust_env=False
    )
    waiting = {"offset": "now", "live": "long-poll"}

    def wait(_: int) -> int:
        # API Gateway gives up after 30 s; a process that is started by then is there for the next request.
        url = f"{stack.url}/v1/stream/warm"
        return httpx.get(url, params=waiting, timeout=120, trust_env=False).status_code

    with ThreadPoolExecutor(READERS) as pool:
        assert set(pool.map(wait, range(READERS))) <= {204, 503}


def test_the_official_suite_passes(stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All groups, through the emulated API Gateway and the built artifacts; exceptions have a reason.

    A property that the suite did not get to try in its ten seconds is tried again, alone.
    """
    start_environments(stack)
    outcome = run_suite(stack.url, None, tmp_path / "report.json")
    failures = dict(outcome.failures)
    for number, test in enumerate(outcome.failures):
        if INTERRUPTED in outcome.failures[test]:
            again = run_suite(stack.url, re.escape(test), tmp_path / f"again-{number}.json")
            if (again.passed, again.failures) == (1, {}):
                del failures[test]
    with capsys.disabled():
        print(f"\nofficial suite through the HTTP API, at the first try: {counted(outcome)}")
        for test, message in failures.items():
            print(f"FAILED  {test}\n{indented(message, 4)}")
    assert failures.keys() == EXPECTED.keys()
    assert (outcome.total, outcome.skipped) == (TESTS, 0)

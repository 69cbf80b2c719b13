"""The emulators of AWS and the environment that leads to them. They end with their parent, and leave nothing
behind."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.available import require_engine
from tests.processes import children_of, is_running
from tests.stack.emulators import EngineFailed, environment_for
from tests.stack.engines import LocalServices

pytestmark = pytest.mark.slow

#: Starts the engines on a directory, says so, and waits to be killed.
PARENT = """
import sys
from tests.stack.engines import LocalServices
with LocalServices(sys.argv[1]) as services:
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({}, {"AWS_ENDPOINT_URL_S3": "u", "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}),
        ({"AWS_REGION": "eu-1"}, {"AWS_REGION": "eu-1", "AWS_DEFAULT_REGION": "eu-1"}),
        ({"AWS_DEFAULT_REGION": "eu-2"}, {"AWS_REGION": "eu-2", "AWS_DEFAULT_REGION": "eu-2"}),
        # botocore would ask a proxy even for a loopback address.
        ({"HTTP_PROXY": "http://p", "NO_PROXY": "intranet"}, {"NO_PROXY": "intranet,127.0.0.1,localhost"}),
    ],
)
def test_the_environment_leads_to_the_emulators(given: dict[str, str], added: dict[str, str]) -> None:
    found = environment_for({"s3": "u"}, given)
    assert found.items() >= added.items()
    assert ("NO_PROXY" in found, "AWS_SECRET_ACCESS_KEY" in found) == ("HTTP_PROXY" in given, True)
    assert "AWS_SECRET_ACCESS_KEY" not in environment_for({}, given | {"AWS_PROFILE": "own"})


pytest.importorskip("tests.stack.ministack_server", reason="ministack is not installed")


WRITE = """
import sys
from ministack.services import s3
from tests.stack.ministack_server import _or_end
_or_end(s3._atomic_write)(sys.argv[1], b"tide")
print("acknowledged")
"""


def test_ministack_ends_if_it_cannot_write(tmp_path: Path) -> None:
    """ministack itself would log the error and acknowledge the object."""
    command = [sys.executable, "-c", WRITE, str(tmp_path / "missing/object")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stdout == ""
    assert "FileNotFoundError" in process.stderr


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    require_engine()
    command = [sys.executable, "-c", PARENT, str(tmp_path / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_engines_end_with_a_parent_that_is_killed(parent: subprocess.Popen[str], tmp_path: Path) -> None:
    """The next start, right after it, finds the directory free."""
    assert parent.stdout is not None
    parent.stdout.readline()
    pids = children_of(parent.pid)
    assert pids
    assert all(is_running(pid) for pid in pids)
    parent.kill()
    with LocalServices(tmp_path / "data"):
        assert not any(is_running(pid) for pid in pids), "the lock was free before they were gone"


def test_what_cannot_be_started_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.stack.emulators.find_spec", lambda _: None)
    with pytest.raises(EngineFailed, match="ministack is not installed; `make run` installs it"):
        LocalServices(tmp_path / "data").start()


def test_a_run_in_memory_leaves_no_directory_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with LocalServices(only=["dynamodb"]):
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())

"""During a deployment the release before, unpacked from the history, and this one write to one stream."""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.available import NotAvailable
from tests.support import World

pytestmark = pytest.mark.slow

#: The commit of the release before (`CONTRIBUTING.md`, A release).
RELEASE_BEFORE: Final = "b51f5b7d"
WRITERS: Final = 12
LARGE: Final = (3000,) * 8
MIXED: Final = (40, 3000, 200, 30_000, 1500, 9000)
ROOT: Final = Path(__file__).parents[2]
UNPACKED: Final = ROOT / ".cache" / "releases"
TODAY: Final = "today"


def unpack(commit: str) -> Path:
    """The folder of a release; it is unpacked once."""
    if commit == TODAY:
        return ROOT
    folder = UNPACKED / commit
    if not folder.exists():
        command = ["git", "archive", commit, "shared/tidemark", "functions", "events"]
        made = subprocess.run(command, cwd=ROOT, check=False, capture_output=True)
        if made.returncode:
            raise NotAvailable(f"the history has no {commit} (git fetch --unshallow): {made.stderr.decode()}")
        UNPACKED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=UNPACKED) as part:
            with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
                archive.extractall(part, filter="data")
            with suppress(OSError):  # Another run was first.
                Path(part).rename(folder)
            Path(part).mkdir(exist_ok=True)
    return folder


class Environment:
    """A process with the functions of one release."""

    def __init__(self, release: str, variables: Mapping[str, str]) -> None:
        self.release, folder = release, unpack(release)
        command = [sys.executable, str(Path(__file__).with_name("one_environment.py")), str(folder)]
        env, pipe = {**os.environ, **variables, "PYTHONPATH": str(folder / "shared")}, subprocess.PIPE
        self.process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)

    def ask(self, job: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([job, arguments]) + "\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"an environment of {self.release} has ended"
        return line

    def answer(self) -> Any:
        return json.loads(self.line())

    def do(self, job: str, *arguments: Any) -> Any:
        self.ask(job, *arguments)
        return self.answer()


@contextmanager
def environments(releases: Sequence[str], variables: Mapping[str, str]) -> Iterator[list[Environment]]:
    with ExitStack() as stack:
        running = [Environment(release, variables) for release in releases]
        for environment in running:
            stack.enter_context(environment.process)
            stack.callback(environment.process.kill)
        for environment in running:
            assert environment.line() == "ready\n"
        yield running


def test_what_two_releases_acknowledge_is_there_once(world: World) -> None:
    producer = "a producer with a name so long that a list of twelve is deflated"
    with environments([RELEASE_BEFORE, TODAY] * (WRITERS // 2), world.variables) as running:
        for number, (sizes, claims) in enumerate(
            [(LARGE, ""), (MIXED, ""), (LARGE, producer), (MIXED, producer)]
        ):
            path = f"/v1/stream/two/{number}"
            assert running[0].do("create", path) == 201
            for writer, environment in enumerate(running):
                environment.ask("write", path, f"{claims}{writer:02}" if claims else None, writer, sizes)
            answers = [tuple(answer) for environment in running for answer in environment.answer()]
            assert {status for _, _, status in answers} <= {200, 204}, Counter(answers)
            appended = Counter((name, size) for name, size, _ in answers)
            for reader in (0, -1):
                status, found = running[reader].do("read", path)
                assert status == 200
                assert Counter(map(tuple, found)) == appended, running[reader].release

"""Earlier releases, unpacked from the history, and environments of several releases on one table."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.available import NotAvailable

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

"""`python -m tests.mutations [words of a name …]`: which planted bugs the tests catch, and which test does.

Each is planted in a copy of the tree, so that nothing here changes. `WORKERS` bugs are tried at once, each in
a copy of its own; without `WORKERS`, as many as this machine has cores. It ends with 1 where a bug survives,
and where the tests cannot run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tests.mutations.table import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
LINKED = (".venv", ".venv-spark", "node_modules")
#: A bug may make a test wait for ever: that is found too. Below pytest's own limit, so it is the only one.
HANG_SECONDS = 600
OPTIONS = ("-x", "-v", "-n", "0", "-rfE", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=1")


class Verdict(NamedTuple):
    text: str
    #: The node id of the first test that failed.
    caught_by: str = ""


class Result(NamedTuple):
    bug: str
    verdict: Verdict
    seconds: float


def main(words: list[str]) -> int:
    chosen = [each for each in MUTATIONS if not words or any(word in each.name for word in words)]
    workers = max(1, int(os.environ.get("WORKERS") or os.cpu_count() or 1))
    copies: SimpleQueue[Path] = SimpleQueue()

    def try_one(each: Mutation) -> Result:
        began, copy = time.monotonic(), copies.get()
        try:
            verdict = Verdict(f"not run: {each.covered_by}") if each.covered_by else judge(copy, each)
        finally:
            copies.put(copy)
        result = Result(each.name, verdict, time.monotonic() - began)
        print(f"{result.seconds:5.0f} s  {verdict.text}: {each.name}", file=sys.stderr, flush=True)
        return result

    with ExitStack() as stack:
        for _ in range(workers):
            copies.put(
                copy_tree(
                    Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-mutations-")))
                )
            )
        results = list(stack.enter_context(ThreadPoolExecutor(workers)).map(try_one, chosen))
    print(table(results))
    bad = [each for each in results if not each.verdict.text.startswith(("caught", "not run"))]
    print(f"{len(results)} bugs, {len(bad)} not caught")
    return 1 if bad or not results else 0


def copy_tree(folder: Path) -> Path:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for name in LINKED:
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    return folder


def judge(copy: Path, each: Mutation) -> Verdict:
    """Plants the bug, runs the tests, and takes it out again. Tests that cannot run at all catch nothing."""
    place = copy / each.path
    text = place.read_text()
    place.write_text(text.replace(each.before, each.after))
    command = [sys.executable, "-m", "pytest", *OPTIONS, *(f"tests/{name}" for name in each.tests)]
    environment = os.environ | {"PYTHONPATH": f"{copy}:{copy / 'shared'}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=HANG_SECONDS,
        )
    except subprocess.TimeoutExpired as hang:
        return Verdict("caught (hangs)", last_started((hang.stdout or b"").decode().splitlines()))
    finally:
        place.write_text(text)
    verdict = {0: "SURVIVED", 1: "caught"}.get(run.returncode, f"BROKEN {run.returncode}")
    return Verdict(verdict, first_failed(run.stdout.decode().splitlines()))


def first_failed(output: Iterable[str]) -> str:
    """`FAILED tests/x.py::test_y - AssertionError` in pytest's short summary."""
    failed = (line.split(" - ")[0] for line in output if line.startswith(("FAILED ", "ERROR ")))
    return next((line.partition(" ")[2] for line in failed), "")


def last_started(output: Iterable[str]) -> str:
    return next((line.split(" ")[0] for line in reversed(list(output)) if "::" in line), "")


def table(results: list[Result]) -> str:
    width = max((len(each.bug) for each in results), default=0)
    return "\n".join(
        f"{bug:{width}}  {verdict.text:14} {seconds:5.0f} s  {verdict.caught_by.removeprefix('tests/')}"
        for bug, verdict, seconds in results
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

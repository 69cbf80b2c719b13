"""Runs the official conformance suite: `python -m tests.conformance.run`.

Environment:
  VIA       `asgi` or `lambda`; without it both ways are run. `reference`: the Node server.
  BASE_URL  run against the server that is already there, and start none.
  GROUP     a pattern, case-sensitive: only the tests whose full name contains it; nothing is expected of
            their number.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.conformance.outcome import TESTS, Outcome, read_outcome
from tests.conformance.servers import ROOT, reference_server, running, temporary_directory, tidemark_server

HERE = Path(__file__).parent
LONG_POLL_SECONDS = 3
SUITE_SECONDS = 1800
#: The reference server does not pass its own suite whole; what it fails is listed by the run.
PASSED_BY_REFERENCE = 332


class SuiteDidNotRun(RuntimeError):
    """vitest ended without a report; the message ends with its output."""


def main() -> int:
    group = os.environ.get("GROUP")
    if base_url := os.environ.get("BASE_URL"):
        return report("base-url", base_url, group)
    via = os.environ.get("VIA")
    if via not in (None, "", "asgi", "lambda", "reference"):
        raise SystemExit(f"VIA must be asgi, lambda or reference, not {via!r}")
    return max([run_way(each, group) for each in ([via] if via else ["asgi", "lambda"])])


def run_way(way: str, group: str | None) -> int:
    seconds = str(LONG_POLL_SECONDS)
    with temporary_directory() as directory:
        if way == "reference":
            server = reference_server(directory, LONG_POLL_SECONDS=seconds)
        else:
            server = tidemark_server(way, directory, LONG_POLL_SECONDS=seconds)
        with running(server):
            return report(way, server.base_url, group, server.log_tail)


def report(way: str, base_url: str, group: str | None, server_output: Callable[[], str] = lambda: "") -> int:
    """Run the suite, print what came of it with the counts last, and return the exit code."""
    with temporary_directory() as directory:
        outcome = run_suite(base_url, group, directory / "report.json")
    problems = [] if group else outcome.problems(PASSED_BY_REFERENCE if way == "reference" else TESTS)
    failed = outcome.failures and way != "reference"
    code = 1 if failed or problems or outcome.passed == 0 else 0
    if code:
        print(f"{way}: the end of the server's output:\n{server_output()}")
    for test, message in outcome.failures.items():
        print(f"FAILED  {test}\n{indented(message)}")
    for problem in problems:
        print(f"{way}: NOT AS EXPECTED: {problem}")
    print(f"{way}: {counted(outcome)}", flush=True)
    return code


def run_suite(base_url: str, group: str | None, result: Path) -> Outcome:
    command = [
        str(ROOT / "node_modules" / ".bin" / "vitest"), "run",
        "--root", str(HERE), "--config", str(HERE / "vitest.config.mjs"),
        "--reporter=json", f"--outputFile={result}",
        *(["-t", group] if group else []),
    ]  # fmt: skip
    suite = {"SUITE_BASE_URL": base_url, "SUITE_LONG_POLL_MS": str(LONG_POLL_SECONDS * 1000)}
    run = subprocess.run(
        command, cwd=ROOT, env=os.environ | suite, capture_output=True, text=True, check=False,
        timeout=SUITE_SECONDS,
    )  # fmt: skip
    if not result.exists():
        raise SuiteDidNotRun(run.stdout + run.stderr)
    return read_outcome(result)


def counted(outcome: Outcome) -> str:
    failed = len(outcome.failures)
    return f"{outcome.passed} passed, {failed} failed, {outcome.skipped} skipped, {outcome.total} in all"


def indented(text: str, lines: int = 12) -> str:
    return "\n".join(f"        {line}" for line in text.splitlines()[:lines])


if __name__ == "__main__":
    sys.exit(main())

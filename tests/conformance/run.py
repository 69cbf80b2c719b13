"""Runs the official conformance suite: `python -m tests.conformance.run`.

Environment:
  VIA       `asgi` or `lambda`; without it both ways are run. `reference`: the Node server, whole suite.
  BASE_URL  run against the server that is already there, and start none.
  WHOLE     `1` leaves no group out and wants every test to pass.
  GROUP     a pattern, case-sensitive: only the tests whose full name contains it; counts are then not held to
            the expectation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.expectation import Expectation, load_expectation, whole_suite
from tests.conformance.outcome import Outcome, read_outcome
from tests.conformance.servers import (
    ROOT,
    Server,
    reference_server,
    running,
    temporary_directory,
    tidemark_server,
)

HERE = Path(__file__).parent
LONG_POLL_SECONDS = 3
SUITE_SECONDS = 1800
# The reference server does not pass its own suite whole; what it fails is listed by the run.
REFERENCE_PASSES = 332


class SuiteDidNotRun(RuntimeError):
    """vitest ended without a report; the message ends with its output."""


@dataclass(frozen=True)
class Way:
    """One run of the suite: against which server, and what must come of it."""

    name: str
    expected: Expectation
    failures_allowed: bool = False


def main() -> int:
    group = os.environ.get("GROUP")
    base_url = os.environ.get("BASE_URL")
    if base_url:
        return report(Way("base-url", expectation()), base_url, group)
    results = [run_way(way, group) for way in chosen_ways(os.environ.get("VIA"))]
    return max(results)


def expectation() -> Expectation:
    expected = load_expectation()
    return whole_suite(expected.total) if os.environ.get("WHOLE") == "1" else expected


def chosen_ways(via: str | None) -> list[Way]:
    if via == "reference":
        return [Way("reference", whole_suite(REFERENCE_PASSES), failures_allowed=True)]
    if via not in (None, "", "asgi", "lambda"):
        raise SystemExit(f"VIA must be asgi, lambda or reference, not {via!r}")
    return [Way(each, expectation()) for each in ([via] if via else ["asgi", "lambda"])]


def run_way(way: Way, group: str | None) -> int:
    with temporary_directory() as directory, running(server_for(way, directory)) as server:
        return report(way, server.base_url, group, server.log_tail)


def server_for(way: Way, directory: Path) -> Server:
    seconds = str(LONG_POLL_SECONDS)
    if way.name == "reference":
        return reference_server(directory, LONG_POLL_SECONDS=seconds)
    return tidemark_server(way.name, directory, LONG_POLL_SECONDS=seconds)


def report(way: Way, base_url: str, group: str | None, server_output: Callable[[], str] = lambda: "") -> int:
    """Run the suite, print what came of it with the counts last, and return the exit code."""
    with temporary_directory() as directory:
        outcome = run_suite(base_url, way.expected, group, directory / "report.json")
    problems = [] if group else outcome.problems(way.expected)
    failed = bool(outcome.failures) and not way.failures_allowed
    code = 1 if failed or problems or outcome.passed == 0 else 0
    if code:
        print(f"{way.name}: the end of the server's output:\n{server_output()}")
    print_outcome(way, outcome, problems)
    return code


def run_suite(base_url: str, expected: Expectation, group: str | None, result: Path) -> Outcome:
    pattern = expected.test_name_pattern(group)
    command = [
        str(ROOT / "node_modules" / ".bin" / "vitest"), "run",
        "--root", str(HERE), "--config", str(HERE / "vitest.config.mjs"),
        "--reporter=json", f"--outputFile={result}",
        *(["-t", pattern] if pattern else []),
    ]  # fmt: skip
    environment = {
        **os.environ,
        "SUITE_BASE_URL": base_url,
        "SUITE_LONG_POLL_MS": str(LONG_POLL_SECONDS * 1000),
    }
    run = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS,
        check=False,
    )
    if not result.exists():
        raise SuiteDidNotRun(run.stdout + run.stderr)
    return read_outcome(result, expected)


def print_outcome(way: Way, outcome: Outcome, problems: list[str]) -> None:
    for failure in outcome.failures:
        print(f"FAILED  {failure.test}\n{indented(failure.message)}")
    for problem in problems:
        print(f"{way.name}: NOT AS EXPECTED: {problem}")
    left_out = "; ".join(f"{count} {each.name} ({each.reason})" for each, count in outcome.left_out.items())
    print(
        f"{way.name}: {outcome.passed} passed, {outcome.failed} failed, "
        f"{outcome.left_out_total} left out{f' ({left_out})' if left_out else ''}, "
        f"{outcome.skipped} skipped otherwise, {outcome.total} in all"
    )
    skipped = outcome.left_out_total + outcome.skipped
    print(f"{outcome.passed} passed, {outcome.failed} failed, {skipped} skipped", flush=True)


def indented(text: str, lines: int = 12) -> str:
    return "\n".join(f"        {line}" for line in text.splitlines()[:lines])


if __name__ == "__main__":
    sys.exit(main())

"""The suite's result: vitest's JSON report, counted so that no test can disappear."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.expectation import Expectation, LeftOut


@dataclass(frozen=True)
class Failure:
    test: str
    message: str


@dataclass(frozen=True)
class Outcome:
    """Counts by what became of each test; `skipped` counts what no named reason covers."""

    passed: int
    failures: tuple[Failure, ...]
    left_out: dict[LeftOut, int]
    skipped: int

    @property
    def failed(self) -> int:
        return len(self.failures)

    @property
    def left_out_total(self) -> int:
        return sum(self.left_out.values())

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.left_out_total + self.skipped

    def problems(self, expected: Expectation) -> list[str]:
        """Every way in which this run is not what was expected, beside the failures themselves."""
        found = []
        if self.total != expected.total:
            found.append(f"{self.total} tests seen, {expected.total} expected")
        if self.passed < expected.passed:
            found.append(f"{self.passed} passed, at least {expected.passed} expected")
        if self.skipped:
            found.append(f"{self.skipped} skipped for no reason that is named")
        found += [
            f"no test is in the group «{each.group}…»" for each, count in self.left_out.items() if count == 0
        ]
        return found


def read_outcome(report: Path, expected: Expectation) -> Outcome:
    """Count vitest's JSON report.

    Raises `ValueError` for a test state that this module does not know, rather than losing the test.
    """
    passed, skipped = 0, 0
    failures: list[Failure] = []
    left_out = Counter(dict.fromkeys(expected.left_out, 0))
    for test in tests_in(report):
        reason = reason_for(test, expected)
        match test["status"]:
            case "passed":
                passed += 1
            case "failed":
                failures.append(Failure(str(test["fullName"]), "\n".join(test["failureMessages"] or [])))
            case "skipped" | "pending" | "todo" if reason is not None:
                left_out[reason] += 1
            case "skipped" | "pending" | "todo":
                skipped += 1
            case unknown:
                raise ValueError(f"unknown state {unknown!r} of «{test['fullName']}»")
    return Outcome(passed, tuple(failures), dict(left_out), skipped)


def tests_in(report: Path) -> list[dict[str, Any]]:
    files = json.loads(report.read_text())["testResults"]
    return [test for file in files for test in file["assertionResults"]]


def reason_for(test: dict[str, Any], expected: Expectation) -> LeftOut | None:
    name = str(test["fullName"])
    return next((each for each in expected.left_out if name.startswith(each.group)), None)

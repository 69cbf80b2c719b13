"""The suite's result: vitest's JSON report, counted so that no test can disappear."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: So many tests has @durable-streams/server-conformance-tests 0.3.6, and all of them pass.
TESTS: Final = 338


@dataclass(frozen=True)
class Outcome:
    total: int
    passed: int
    #: By the test's full name, what it said.
    failures: dict[str, str]

    @property
    def skipped(self) -> int:
        return self.total - self.passed - len(self.failures)

    def problems(self, at_least: int) -> list[str]:
        """Every way in which this run is not what was expected, beside the failures themselves."""
        found = []
        if self.total != TESTS:
            found.append(f"{self.total} tests seen, {TESTS} expected")
        if self.passed < at_least:
            found.append(f"{self.passed} passed, at least {at_least} expected")
        if self.skipped:
            found.append(f"{self.skipped} skipped")
        return found


def read_outcome(report: Path) -> Outcome:
    files = json.loads(report.read_text())["testResults"]
    tests = [test for file in files for test in file["assertionResults"]]
    failures = {
        test["fullName"]: "\n".join(test["failureMessages"] or [])
        for test in tests
        if test["status"] == "failed"
    }
    return Outcome(len(tests), Counter(test["status"] for test in tests)["passed"], failures)

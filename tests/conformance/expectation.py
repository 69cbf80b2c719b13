"""What the suite must come to: `not_built_yet.json` is the one place that names what is left out and why."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("not_built_yet.json")


@dataclass(frozen=True)
class LeftOut:
    """Groups whose title starts with `group` are not run: they wait for something not built yet."""

    group: str
    waits_for: str
    issue: int | None

    @property
    def name(self) -> str:
        return self.group.strip(" -")

    @property
    def reason(self) -> str:
        where = f"issue {self.issue}" if self.issue is not None else "not scheduled yet"
        return f"waits for {self.waits_for}, {where}"


@dataclass(frozen=True)
class Expectation:
    """`total` tests exist, at least `passed` of them pass, and all others are accounted for by `left_out`."""

    total: int
    passed: int
    left_out: tuple[LeftOut, ...]

    def test_name_pattern(self, group: str | None) -> str | None:
        """For vitest's `-t`, which is matched against the titles of groups and test, joined by spaces."""
        wanted = f"(?=.*(?:{group}))" if group else ""
        if not self.left_out:
            return f"^{wanted}" if wanted else None
        return f"^(?!{'|'.join(re.escape(each.group) for each in self.left_out)}){wanted}"


def load_expectation() -> Expectation:
    content = json.loads(FILE.read_text())
    left_out = tuple(LeftOut(**each) for each in content["not_built_yet"])
    return Expectation(content["total"], content["passed"], left_out)


def whole_suite(at_least: int) -> Expectation:
    """Nothing left out: for a server that is not ours."""
    return Expectation(load_expectation().total, at_least, ())

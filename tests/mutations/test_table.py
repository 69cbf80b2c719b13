"""The list of bugs fits the code: each can be planted, and names tests that are there."""

from __future__ import annotations

from tests.mutations.__main__ import ROOT
from tests.mutations.table import MUTATIONS


def test_each_bug_can_be_planted() -> None:
    for each in MUTATIONS:
        text = (ROOT / each.path).read_text()
        assert text.count(each.before) == 1, each.name
        assert bool(each.tests) != bool(each.covered_by), each.name
        assert all((ROOT / "tests" / name.partition("::")[0]).is_file() for name in each.tests), each.name
        compile(text.replace(each.before, each.after), each.file, "exec")

"""The tests and files that a page names exist, so a reader can look up what a claim rests on."""

from __future__ import annotations

import re
from fnmatch import filter as matching
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
TESTS = {
    name
    for folder in ("tests", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}


def broken_references(text: str) -> list[str]:
    """Names of tests (`*` stands for any ending), paths and files of tests that do not exist."""
    names = re.findall(r"`(test_\w+\*?)`", text)
    paths = re.findall(r"`(tests/[\w/.-]+)`", text)
    files = re.findall(r"`(test_\w+\.py)`", text)
    return [
        *(name for name in names if not matching(TESTS, name)),
        *(path for path in paths if not (ROOT / path).exists()),
        *(name for name in files if not list((ROOT / "tests").rglob(name))),
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    assert broken_references(page.read_text()) == []


def test_a_reference_to_a_missing_test_is_found() -> None:
    text = "`test_every_test_that_a_page_*` `test_of_nothing` `tests/infra` `tests/infra/test_nothing.py`"
    missing = ["test_of_nothing", "tests/infra/test_nothing.py", "test_nothing.py"]
    assert broken_references(text + " `test_nothing.py` `test_references.py`") == missing

"""The tests, modules and names that a page or a docstring refers to exist, so a reader can look them up."""

from __future__ import annotations

import re
from fnmatch import filter as matching
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: All but the changelog, which may name what has gone since.
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
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


def broken_modules(text: str) -> list[str]:
    """Missing modules and names, of those written as `log/tails.py` and `log/append.py: check_landed`."""
    broken = []
    for path, name in re.findall(r"`((?:\w+/)+\w+\.(?:py|mjs|sh))(?::\s+(\w+))?", text):
        files = [folder / path for folder in (ROOT, ROOT / "shared" / "tidemark", ROOT / "tests")]
        sources = [file.read_text() for file in files if file.exists()]
        if not any(re.search(rf"\b{name}\b", source) for source in sources):
            broken.append(f"{path}: {name}".removesuffix(": "))
    return broken


def test_every_test_that_a_page_names_exists() -> None:
    broken = {str(page.relative_to(ROOT)): broken_references(page.read_text()) for page in PAGES}
    assert {page: names for page, names in broken.items() if names} == {}


def test_every_module_that_a_page_or_a_docstring_names_exists() -> None:
    sources = [*PAGES, *sorted((ROOT / "shared" / "tidemark").rglob("*.py")), ROOT / "template.yaml"]
    broken = {str(path.relative_to(ROOT)): broken_modules(path.read_text()) for path in sources}
    assert {path: names for path, names in broken.items() if names} == {}


def test_a_reference_to_what_is_missing_is_found() -> None:
    text = "`test_every_test_that_a_page_*` `test_of_nothing` `tests/infra` `tests/infra/test_nothing.py`"
    missing = ["test_of_nothing", "tests/infra/test_nothing.py", "test_nothing.py"]
    assert broken_references(text + " `test_nothing.py` `test_references.py`") == missing
    text = "`log/append.py: check_landed` `log/append.py: check_nothing` `log/nothing.py`"
    assert broken_modules(text) == ["log/append.py: check_nothing", "log/nothing.py"]


def test_nothing_tells_people_to_install_another_programs_package() -> None:
    """On PyPI the name `tidemark` is a stranger's; the distribution is `tidemark-streams`."""
    sources = [*PAGES, *sorted((ROOT / "shared" / "tidemark").rglob("*.py"))]
    wrong = re.compile(r"""(?:install|add|--from) (?:-\S+ )*['"]?tidemark\b(?![_-]streams)""")
    found = {str(path.relative_to(ROOT)): wrong.findall(path.read_text()) for path in sources}
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert wrong.search("pip install tidemark")
    assert wrong.search("uv pip install 'tidemark[server]'")

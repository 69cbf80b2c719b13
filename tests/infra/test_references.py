"""The tests, modules and names that a page or a docstring refers to exist, so a reader can look them up."""

import re
from fnmatch import filter as matching
from pathlib import Path
from pydoc import locate

ROOT = Path(__file__).parents[2]
#: All but the changelog, which may name what has gone since.
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
FILES = {
    path: path.read_text()
    for folder in ("benchmarks", "docs", "functions", "pipeline", "shared", "tests")
    for path in sorted((ROOT / folder).rglob("*.*"))
    if path.suffix in {".py", ".mjs", ".sh"}
}
CODE = {path: text for path, text in FILES.items() if path.is_relative_to(ROOT / "shared")}
#: Rooms and modules of the package, and the deployed functions.
NAMES = {part for path in [*CODE, *ROOT.glob("functions/*")] for part in path.with_suffix("").parts}
TESTS = set(re.findall(r"^ *(?:async )?def (test_\w+)", "".join(FILES.values()), re.MULTILINE))


def broken_references(text: str) -> list[str]:
    """Names of tests (`*` stands for any ending) and paths of tests that do not exist."""
    missing = [name for name in re.findall(r"`(test_\w+\*?)`", text) if not matching(TESTS, name)]
    return missing + [path for path in re.findall(r"`(tests/[\w/.-]+)`", text) if not (ROOT / path).exists()]


def broken_modules(text: str) -> list[str]:
    """Missing modules and names, of those written as `tails.py` and `log/append.py: check_landed`."""
    broken = []
    for path, name in re.findall(r"`((?:\w+/)*\w+\.(?:py|mjs|sh))(?::\s+(\w+))?", text):
        sources = [source for file, source in FILES.items() if str(file).endswith(f"/{path}")]
        if not any(re.search(rf"\b{name}\b", source) for source in sources):
            broken.append(f"{path}: {name}".removesuffix(": "))
    return broken


def broken_names(text: str) -> list[str]:
    """Missing names, of those written as `log.table.Table` and `Stream.append`."""
    broken = []
    for first, rest in re.findall(r"`(?:tidemark\.)?([A-Z]?[a-z]\w+)\.(?!py`)((?:[A-Za-z_]\w+\.?)+)`", text):
        if first[0].isupper():
            found = any(f"class {first}" in source and rest in source for source in CODE.values())
        else:
            found = not locate(f"tidemark.{first}") or bool(locate(f"tidemark.{first}.{rest}"))
        broken += [] if found else [f"{first}.{rest}"]
    return broken


def test_every_test_that_a_page_names_exists() -> None:
    broken = {str(page.relative_to(ROOT)): broken_references(page.read_text()) for page in PAGES}
    assert {page: names for page, names in broken.items() if names} == {}


def test_every_module_that_a_page_or_a_docstring_names_exists() -> None:
    sources = [*PAGES, *CODE, ROOT / "template.yaml"]
    broken = {path: broken_modules(path.read_text()) for path in sources}
    for path, source in CODE.items():
        broken[path] += broken_names(source)
        if path.name == "__init__.py":
            prose = re.sub(r"(?m)^\|.*", "", source.split('"""')[1])
            broken[path] += set(re.findall(r"`([a-z]\w+)`", prose)) - NAMES
    assert {str(path.relative_to(ROOT)): names for path, names in broken.items() if names} == {}


def test_nothing_tells_people_to_install_another_programs_package() -> None:
    """On PyPI the name `tidemark` is a stranger's; the distribution is `tidemark-streams`."""
    wrong = re.compile(r"""(?:install|add|--from) (?:-\S+ )*['"]?tidemark\b(?![_-]streams)""")
    found = {str(path.relative_to(ROOT)): wrong.findall(path.read_text()) for path in [*PAGES, *CODE]}
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert all(map(wrong.search, ["pip install tidemark", "uv pip install 'tidemark[server]'"]))

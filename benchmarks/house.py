"""How large the project is, and how far a reader is sent: lines, files, the share of imports, helpers, names,
parameters, variables, tests, and what one request passes (`benchmarks/journeys.py`).

`make guard` prints it, and fails beyond the limits, which only ever fall (`tests/infra/test_guard.py`).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "shared" / "tidemark"
#: The measured values when the limits were set, or little more; `docs/internals/code-health.md` has the
#: targets.
LIMITS: Final = {
    "lines of the package": 42_310,
    "files of the package": 213,
    "imports, % of the package's lines": 7.3,
    "lines of template.yaml": 1_680,
    "parameters of the template": 31,
    "variables of the environment": 36,
    "lines of tests": 66_900,
    "lines of tests/stack": 3_870,
    "words of docs/": 35_450,
    "private helpers used once, per 1,000 lines": 5.2,
    "class names of several things": 0,
    "public names of several modules": 42,
    "functions of an append as deployed": 120,
    "files of an append as deployed": 35,
    "hops of an append as deployed": 72,
    "functions of a long-poll as deployed": 177,
    "files of a long-poll as deployed": 36,
    "hops of a long-poll as deployed": 118,
    "functions of a read": 113,
    "files of a read": 29,
    "hops of a read": 79,
}
#: As rows name them, by the names of `benchmarks/journeys.py`.
JOURNEYS: Final = {
    "append": "an append as deployed",
    "long-poll": "a long-poll as deployed",
    "read": "a read",
}


def lines_by_room() -> Counter[str]:
    """Lines of Python in each folder of the package, and in the package itself."""
    rooms: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        rooms[path.relative_to(PACKAGE).parts[0].removesuffix(".py")] += _lines(path)
    return rooms


def measured() -> dict[str, float]:
    """Return the measured values, with the keys of `LIMITS`."""
    sources = sorted(PACKAGE.rglob("*.py"))
    modules = [ast.parse(path.read_text()) for path in sources]
    nodes = [node for module in modules for node in ast.walk(module)]
    template = (ROOT / "template.yaml").read_text()
    lines, stack = sum(map(_lines, sources)), sum(map(_lines, (ROOT / "tests" / "stack").rglob("*.py")))
    return {
        "lines of the package": lines,
        "files of the package": len(sources),
        "imports, % of the package's lines": 100 * _lines_of_imports(nodes) / lines,
        "lines of template.yaml": template.count("\n"),
        "parameters of the template": len(list(_keys_of("Parameters", template))),
        "variables of the environment": len(own_variables()),
        "lines of tests": sum(map(_lines, (ROOT / "tests").rglob("*.py"))) - stack,
        "lines of tests/stack": stack,
        "words of docs/": sum(len(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md")),
        "private helpers used once, per 1,000 lines": 1000 * _helpers_used_once(nodes) / lines,
        "class names of several things": _shared_class_names(nodes),
        "public names of several modules": _shared_public_names(modules),
        **_journeys(),
    }


def _helpers_used_once(nodes: Sequence[ast.AST]) -> int:
    """Count the private functions whose name is used once in the package."""
    used = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    used += Counter(node.attr for node in nodes if isinstance(node, ast.Attribute))
    names = [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return sum(name.startswith("_") and not name.startswith("__") and used[name] == 1 for name in names)


def _shared_class_names(nodes: Sequence[ast.AST]) -> int:
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return sum(count > 1 for name, count in names.items() if not name.startswith("_"))


def _shared_public_names(modules: Sequence[ast.Module]) -> int:
    """Count the public names that several modules give to a function, class, constant or alias."""
    names = Counter(name for module in modules for name in set(_names_of(module)))
    return sum(count > 1 for name, count in names.items() if not name.startswith("_"))


def _names_of(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (
                each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)
            )


def _journeys() -> dict[str, float]:
    """In a process of its own: the journeys set the profiler of every thread."""
    command = [sys.executable, "-m", "benchmarks.journeys"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^(.+): (\d+) functions, (\d+) files, (\d+) hops$", printed, re.MULTILINE)
    return {
        f"{unit} of {JOURNEYS[name]}": float(count)
        for name, *counts in found
        if name in JOURNEYS
        for unit, count in zip(("functions", "files", "hops"), counts, strict=True)
    }


def own_variables() -> list[str]:
    """Return the rows of the reference page, except the variables of AWS's SDK, the terminal and proxies."""
    page = (ROOT / "docs" / "reference" / "environment-variables.md").read_text()
    rows = re.findall(r"^- (`[A-Z].*)$", page.partition("\n## Spark\n")[0], re.MULTILINE)
    return [row for row in rows if not re.match("`(AWS_|NO_|TERM)", row)]


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _lines_of_imports(nodes: Sequence[ast.AST]) -> int:
    found = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in found)


def _keys_of(section: str, template: str) -> Iterator[str]:
    """Read as text, because the template has tags that only SAM's reader knows."""
    body = re.split(r"^(?=\w)", template.partition(f"\n{section}:\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    yield from re.findall(r"^  (\w+):$", body, re.MULTILINE)

"""How large the project is: lines, files, the share of imports, parameters, variables, tests. `make guard`
prints it and fails beyond the limits, so that growth is a decision that somebody writes down here."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "shared" / "tidemark"
#: What was there when the limit was set, and little more; `docs/internals/code-health.md` has the targets.
LIMITS: Final = {
    "lines of the package": 39_200,
    "files of the package": 225,
    "imports, % of the package's lines": 10,
    "lines of template.yaml": 1_500,
    "parameters of the template": 25,
    "variables of the environment": 36,
    "lines of tests": 59_000,
}


def lines_by_room() -> Counter[str]:
    """Lines of Python in each folder of the package, and in the package itself."""
    rooms: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        rooms[path.relative_to(PACKAGE).parts[0].removesuffix(".py")] += _lines(path)
    return rooms


def measured() -> dict[str, float]:
    """By the names of `LIMITS`."""
    sources = sorted(PACKAGE.rglob("*.py"))
    template = (ROOT / "template.yaml").read_text()
    lines = sum(map(_lines, sources))
    return {
        "lines of the package": lines,
        "files of the package": len(sources),
        "imports, % of the package's lines": 100 * sum(map(_lines_of_imports, sources)) / lines,
        "lines of template.yaml": template.count("\n"),
        "parameters of the template": len(list(_keys_of("Parameters", template))),
        "variables of the environment": len(own_variables()),
        "lines of tests": sum(map(_lines, (ROOT / "tests").rglob("*.py"))),
    }


def own_variables() -> list[str]:
    """Rows of the reference page, without those of other programs (AWS's SDK, the terminal, proxies)."""
    page = (ROOT / "docs" / "reference" / "environment-variables.md").read_text()
    rows = re.findall(r"^\| (`[A-Z].*) \|$", page.partition("\n## Spark\n")[0], re.MULTILINE)
    return [row for row in rows if not re.match("`(AWS_|NO_|TERM)", row)]


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _lines_of_imports(path: Path) -> int:
    found = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in found)


def _keys_of(section: str, template: str) -> Iterator[str]:
    """Read as text, because the template has tags that only SAM's reader knows."""
    body = re.split(r"^(?=\w)", template.partition(f"\n{section}:\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    yield from re.findall(r"^  (\w+):$", body, re.MULTILINE)

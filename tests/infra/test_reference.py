"""The reference pages name everything that the code has: variables, metrics, errors."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.test_template import FUNCTION_GLOBALS, ROOT, TEMPLATE
from tidemark.observability.metrics import COUNTERS, HISTOGRAMS
from tidemark.protocol import errors

REFERENCE = ROOT / "docs" / "reference"
VARIABLES_PAGE = (REFERENCE / "environment-variables.md").read_text()
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")


def variables_read(path: Path) -> Iterator[str]:
    """Names in calls and subscripts that have to do with an environment: `environment.get("PORT")`,
    `os.environ["PORT"]`, `_seconds(environment, "SSE_SECONDS", …)`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and "environ" in ast.unparse(node):
            found = node.args
        elif isinstance(node, ast.Subscript) and "environ" in ast.unparse(node):
            found = [node.slice]
        else:
            continue
        for each in found:
            if isinstance(each, ast.Constant) and VARIABLE.fullmatch(str(each.value)):
                yield str(each.value)


READ = {
    name
    for folder in ("shared", "functions")
    for path in (ROOT / folder).rglob("*.py")
    for name in variables_read(path)
    if not name.startswith("COMP_")  # A completion script sets them for the command.
}


def test_every_variable_that_the_code_reads_is_on_the_page() -> None:
    documented = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", VARIABLES_PAGE))
    assert len(READ) > 25
    assert READ - documented == set()
    assert set(FUNCTION_GLOBALS["Environment"]["Variables"]) - documented == set()


@pytest.mark.parametrize("title", ["The application", "Authorization", "`make run`"])
def test_every_variable_on_the_page_is_one_that_the_code_reads(title: str) -> None:
    section = VARIABLES_PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^- ((?:`[A-Z_\d]+`(?:, )?)+)", section, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    folders = (ROOT / "shared", ROOT / "tests" / "stack")
    sources = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    assert named
    assert {name for name in named if f'"{name}"' not in sources} == set()


def test_the_template_parameters_on_the_page_exist() -> None:
    named = set(re.findall(r"parameter `(\w+)`", VARIABLES_PAGE))
    assert len(named) > 8
    assert named <= TEMPLATE["Parameters"].keys()


def test_the_page_of_metrics_is_the_table_of_the_code() -> None:
    """By its name in Prometheus and its name in CloudWatch."""
    names = [(f"{each.title}_total", each.title, each.meaning) for each in COUNTERS]
    names += [(each.title, each.title.replace("seconds", "time"), each.meaning) for each in HISTOGRAMS]
    cells = [(name, title.title().replace("_", ""), meaning) for name, title, meaning in names]
    rows = "".join(f"- `tidemark_{name}`, `{title}`: {meaning}\n" for name, title, meaning in cells)
    assert rows in (REFERENCE / "metrics.md").read_text()


def test_every_status_of_an_error_is_on_its_page() -> None:
    page = (REFERENCE / "errors.md").read_text()
    documented = {int(status) for status in re.findall(r"^- (\d{3}): ", page, re.MULTILINE)}
    raised = {each.status for each in vars(errors).values() if hasattr(each, "status")}
    assert len(raised) > 6
    assert raised <= documented


def test_every_header_of_the_protocol_is_on_a_page() -> None:
    """Those that browsers may send and see are all there are."""
    [source] = (ROOT / "shared" / "tidemark" / "http").glob("headers.py")
    names = set(re.findall(r'"((?:Stream|Producer|Snapshot)-[\w-]+)"', source.read_text()))
    pages = "".join((REFERENCE / page).read_text() for page in ("http.md", "errors.md"))
    assert len(names) > 15
    assert {name for name in names if f"`{name}" not in pages} == set()

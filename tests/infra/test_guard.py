"""The guard of CI says no when a figure is over its limit."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Final

import pytest

from benchmarks import cpu, guard, house
from benchmarks.guard import LIMITS, Guarded
from tests.available import NotAvailable
from tests.infra.test_template import TEMPLATE
from tests.processes import alone

pytestmark = pytest.mark.slow

#: The first commit whose limits hold for all later ones. A release may name a later one.
LIMITS_SINCE: Final = "bd23c27a"
ROW: Final = re.compile(r'^    "(.+)": ([\d_.]+),$', re.MULTILINE)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard sets the environment of its process; here it lasts for one test."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in cpu.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("measured", "code"), [(1.0, 0), (1.0001, 1)])
def test_one_figure_over_its_limit_fails_the_guard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], measured: float, code: int
) -> None:
    monkeypatch.setattr("sys.argv", ["guard"])
    for name in ("append", "read", "cold_starts", "layer"):
        monkeypatch.setattr(guard, f"guard_{name}", list)
    monkeypatch.setattr(guard, "guard_house", lambda: [Guarded("a", measured, 1), Guarded("b", 1, 2)])
    assert guard.main() == code
    assert ("✗" in capsys.readouterr().out) == bool(code)


def test_the_calls_and_the_cpu_of_an_append_and_a_read_are_measured() -> None:
    """Of the real append and the real read; how long they take is judged by the guard alone. What threads and
    clients of other tests do is not counted."""
    rows = [*alone(guard.guard_append), *alone(guard.guard_read)]
    calls, reads, *spent = [row.measured for row in rows]
    published = published_limits()
    assert {row.name: row.limit for row in rows}.items() <= published.items()
    assert published["import of `write` ÷ boto3 with a client"] == LIMITS["import"]
    assert published["the layer as a zip, MB"] == LIMITS["layer"]
    assert (calls, reads) == (1.0, 0)
    assert all(value > 0.01 for value in spent)


def test_the_house_is_counted() -> None:
    """Whether it is too large is judged by the guard alone."""
    found = alone(house.measured)
    assert found.keys() == house.LIMITS.keys()
    assert sum(house.lines_by_room().values()) == found["lines of the package"]
    assert found["parameters of the template"] == len(TEMPLATE["Parameters"])
    assert 5 < found["imports, % of the package's lines"] < 15
    assert found["variables of the environment"] > 25


def test_no_limit_of_the_house_has_risen() -> None:
    changed = history("log", "--format=%h", f"{LIMITS_SINCE}..", "--", "benchmarks/house.py").split()
    for commit in (LIMITS_SINCE, *changed):
        then = dict(ROW.findall(history("show", f"{commit}:benchmarks/house.py")))
        assert then
        for name, limit in house.LIMITS.items():
            assert limit <= float(then.get(name, limit)), f"{name}: {then[name]} in {commit}"


def history(*command: str) -> str:
    try:
        return subprocess.check_output(["git", *command], cwd=cpu.ROOT, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotAvailable(f"the history has no {LIMITS_SINCE} (git fetch --unshallow): {error}") from None


def published_limits() -> dict[str, float]:
    """By the figure's name, of the table of docs/internals/benchmarks.md."""
    page = (cpu.ROOT / "docs" / "internals" / "benchmarks.md").read_text()
    section = page.partition("## What CI holds")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| [\d.]+ \| ([\d.]+) \|$", section, re.MULTILINE)
    return {name: float(limit) for name, limit in rows}

"""The guard of CI says no when a figure is over its limit."""

import os
import re
import subprocess
from typing import Final

import pytest

from benchmarks import cpu, guard, house
from benchmarks.guard import Guarded
from tests.available import NotAvailable

pytestmark = pytest.mark.slow

#: The first commit whose limits hold for all later ones. A release may name a later one.
LIMITS_SINCE: Final = "3c3baf83"
#: Lines beyond a limit for features: shared subscriptions and filtered reads 1,300, listings 250.
GRANTED: Final = {("lines of the package", "40_760"): 1_550}
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


def test_no_limit_of_the_house_has_risen() -> None:
    changed = history("log", "--format=%h", f"{LIMITS_SINCE}..", "--", "benchmarks/house.py").split()
    for commit in (LIMITS_SINCE, *changed):
        then = dict(ROW.findall(history("show", f"{commit}:benchmarks/house.py")))
        assert then
        for name, limit in house.LIMITS.items():
            before = then.get(name, str(limit))
            assert limit <= float(before) + GRANTED.get((name, before), 0), f"{name}: {before} in {commit}"


def history(*command: str) -> str:
    try:
        return subprocess.check_output(["git", *command], cwd=cpu.ROOT, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotAvailable(f"the history has no {LIMITS_SINCE} (git fetch --unshallow): {error}") from None

"""The wheel has the package and nothing else of the tree, and runs without a clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.available import require_engine
from tests.server.test_testing import PRINTED

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "shared" / "tidemark"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")

pytestmark = pytest.mark.artifact

PLACE = """
import os
import tidemark.testing

def test_the_wheel_is_tested():
    assert tidemark.testing.__file__.startswith(os.environ["PYTHONPATH"])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools would put into it what an earlier build left in the tree."""
    place = tmp_path_factory.mktemp("wheel")
    tree = place / "tree"
    shutil.copytree(PACKAGE, tree / "shared" / "tidemark", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "artifact", tree / "tests")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    subprocess.run([*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", place, tree], check=True)
    [made] = place.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path) -> dict[str, str]:
    """The variables of a Python with the wheel, beside the other packages of this one."""
    site = wheel.parent / "site"
    subprocess.run([*PIP, "install", "--quiet", "--no-deps", "--target", site, wheel], check=True)
    return os.environ | {"PYTHONPATH": str(site)}


def test_the_wheel_is_the_package_with_the_consoles_files_and_without_tests(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    own = {name for name in names if not name.startswith("tidemark_streams-")}
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert own == {str(path.relative_to(PACKAGE.parent)) for path in files}
    assert {"tidemark/console/console.html", "tidemark/py.typed"} < own
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_via_lambda_needs_a_clone_and_is_refused_in_one_line(
    environment: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tidemark.cli", "serve", "--port", "0"]
    given = environment | {"VIA": "lambda"}
    ran = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=False)
    said = "tidemark: VIA=lambda needs a clone of the repository: run `VIA=lambda make run` there\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", said)
    assert list(tmp_path.iterdir()) == []


def test_the_guides_tests_pass_with_the_fixtures_of_the_wheel(
    environment: dict[str, str], tmp_path: Path
) -> None:
    require_engine()
    (tmp_path / "test_place.py").write_text(PLACE)
    for number, printed in enumerate(PRINTED):
        (tmp_path / f"test_{number}.py").write_text(printed)
    given = {name: value for name, value in environment.items() if not name.startswith("AWS_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:schemathesis", f"--rootdir={tmp_path}"]
    ran = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert f"= {1 + len(PRINTED)} passed in" in ran.stdout

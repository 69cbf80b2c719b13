"""The wheel has what the package needs while it runs, and nothing else of the tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "shared" / "tidemark"

pytestmark = pytest.mark.artifact


def test_the_wheel_is_the_package_with_the_consoles_files_and_without_tests(tmp_path: Path) -> None:
    """Built from a copy: setuptools would put into it what an earlier build left in the tree."""
    tree = tmp_path / "tree"
    shutil.copytree(PACKAGE, tree / "shared" / "tidemark", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "artifact", tree / "tests")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, tree], check=True)
    [wheel] = tmp_path.glob("*.whl")
    names = set(ZipFile(wheel).namelist())
    own = {name for name in names if not name.startswith("tidemark_streams-")}
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert own == {str(path.relative_to(PACKAGE.parent)) for path in files}
    assert {"tidemark/console/console.html", "tidemark/py.typed"} < own
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)

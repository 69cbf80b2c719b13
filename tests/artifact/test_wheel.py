"""The wheel has the package and nothing else of the tree, and runs without a clone. Each extra has the
packages that its commands import."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.available import require_registry
from tests.conformance.servers import ROOT, Server, running, tidemark_server
from tidemark.client import Stream

PACKAGE = ROOT / "shared" / "tidemark"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
READ_THE_LAKE = """
from pyiceberg.catalog import load_catalog
from tidemark.spark.lake import LakeTable
properties = dict(type="sql", uri="sqlite:///lake/catalog.db")
assert load_catalog("default", **properties).load_table("lake.messages").scan().to_arrow().num_rows == 1
LakeTable("other", properties, "lake.messages").load()
"""
#: A command of each extra, and a part of its output; `serve` runs a server. `dev` is for tests.
COMMANDS = {
    "": ("tidemark cat lines", "1"),
    "archive": (
        f"""mkdir lake
        tidemark archive --pattern lines --iceberg lake.messages --catalog-property type=sql \\
            --catalog-property uri=sqlite:///lake/catalog.db --catalog-property warehouse=file://$PWD/lake
        python -c '{READ_THE_LAKE}' 2>&1 | tail -n 1""",
        "has only the tables that were made under its own name)",
    ),
    "aws": (
        f"""export AWS_ACCESS_KEY_ID=testing AWS_SECRET_ACCESS_KEY=testing AWS_REGION=us-east-1
        export AUTH_SECRET=$(printf %032d)
        for each in {ROOT}/functions/*/app.py; do python $each; done""",
        "",
    ),
    "bench": (f"PYTHONPATH={ROOT} python -c 'import benchmarks.plot'", ""),
    "container": ("serve python -m tidemark.server.container", ""),
    "local": ("serve tidemark serve", ""),
    "mcp": ("tidemark mcp </dev/null; echo ended", "ended"),
    "otel": ("python -c 'import opentelemetry.exporter.otlp.proto.http.trace_exporter'", ""),
    "server": ("serve tidemark serve", ""),
    "test": ("echo 'def test_url(tidemark_url): assert tidemark_url' >test_it.py; pytest -q", "1 passed"),
    "test-aws": (
        "echo 'def test_table(tidemark_aws): assert tidemark_aws' >test_it.py; pytest -q",
        "1 passed",
    ),
}

pytestmark = pytest.mark.artifact


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


def test_via_lambda_needs_a_clone_and_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidemark.cli", "serve", "--port", "0"]
    given = environment | {"VIA": "lambda"}
    ran = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=False)
    said = "tidemark: VIA=lambda needs a clone of the repository: run `VIA=lambda make run` there\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("extra", ["", *sorted(EXTRAS.keys() - {"dev"})])
def test_an_extra_has_all_that_its_command_needs(wheel: Path, tmp_path: Path, extra: str) -> None:
    require_registry("pip")
    environment = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    named = f"{wheel}[{extra}]" if extra else str(wheel)
    there = ["--python", str(environment / "bin" / "python")]
    subprocess.run([*PIP, *there, "install", "--quiet", "--no-compile", named], check=True)
    command, end = COMMANDS[extra]
    path = {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
    if command.startswith("serve "):
        words = ["env", *command.split()[1:]]
        quiet = {**path, "HOST": "127.0.0.1", "ALLOW_ANONYMOUS": ""}
        with running(Server("fresh", words, quiet, tmp_path / "data", "/v1/health")):
            return
    with running(tidemark_server("asgi", tmp_path)) as server:
        url = f"{server.base_url}/v1/stream/lines"
        Stream.create(url, content_type="application/json").append(1)
        ran = subprocess.run(
            ["bash", "-euc", command],
            cwd=tmp_path, env=path | {"HOME": str(tmp_path), "TIDEMARK_URL": server.base_url},
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert end in ran.stdout, ran.stderr

"""The programs of `docs/examples`, run as their pages print it, in a folder that has nothing else: what a
program needs, its page installs."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.available import require_registry
from tests.conformance.servers import ROOT, node, running, tidemark_server

DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: What the program of each page says at its end.
SAYS = {
    "guides/llm-tokens.md": "",
    "guides/collaborative-document.md": "final",
    "guides/synced-table.md": "without compaction: 5000 messages, 732662 bytes for 190 rows",
    "subscriptions.md": "tasks/anna",
}


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("server")
    with running(tidemark_server("asgi", directory, PACK_AFTER_SECONDS="0")) as server:
        yield server.base_url


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A clone in which nothing was installed, as far as these programs see it."""
    shutil.copytree(DOCS / "examples", tmp_path / "docs" / "examples")
    shutil.copytree(
        ROOT / "shared", tmp_path / "shared", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", SAYS)
def test_a_program_runs_with_what_its_page_installs(page: str, base_url: str, empty: Path) -> None:
    node()
    blocks = BLOCK.findall((DOCS / page).read_text())
    index, printed = next((index, each) for index, each in enumerate(blocks) if " docs/examples/" in each)
    if page == "subscriptions.md":
        printed = blocks[index - 1] + printed  # What the worker works on.
    require_registry("npm" if "npm install" in printed else "pip")
    inherited = {
        name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}
    }
    done = subprocess.run(
        ["bash", "-ec", printed.replace("http://127.0.0.1:4437", base_url)],
        cwd=empty, env=inherited, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert SAYS[page] in done.stdout

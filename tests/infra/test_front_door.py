"""What a visitor meets first: licence, version, checks before a commit, diagrams, the site's contents."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MKDOCS = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    body = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert body, target
    return [
        line.strip().removeprefix("@").replace("$(VENV)", ".venv/bin/python") for line in body[1].splitlines()
    ]


def test_the_version_is_the_newest_of_the_changelog() -> None:
    released = re.findall(
        r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert released[0] == PROJECT["version"] == json.loads((ROOT / "package.json").read_text())["version"]


def test_a_commit_is_checked_by_what_make_lint_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["repo"] for hook in hooks] == ["local"]
    assert [hook["entry"] for hook in hooks[0]["hooks"]] == recipe("lint")


def test_the_workflow_runs_what_every_machine_can_run() -> None:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["all"]
    [command] = [step["run"] for step in job["steps"] if "run" in step]
    assert re.findall("[.]ci/[a-z]+", command) == [".ci/nightly", ".ci/run"]


#: Targets that neither .ci/run nor .ci/nightly starts, and the test that runs what is behind each.
RUN_BY_A_TEST = {
    "deploy": "tests/emulated/test_private_stack.py",
    "undeploy": "tests/ops/test_deploy.py",
    "release": "tests/infra/test_locks.py",
    "base-image": "tests/infra/test_locks.py",
}
#: What starts the others.
STARTS_OTHERS = {"help", "nightly", "prove"}


def targets_of(*command: str) -> set[str]:
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^  make ([a-z0-9-]+) ", said, re.MULTILINE))


def test_each_target_of_make_help_is_run_by_day_or_by_night() -> None:
    """A command that nothing runs breaks unseen."""
    targets = targets_of("make", "help", "ALL=1")
    assert len(targets) > 30
    scripts = "".join((ROOT / ".ci" / name).read_text() for name in ("run", "nightly", "stages.sh"))
    commands = re.findall(r"\bmake ((?:-j \d )?[a-z][a-z0-9- ]*)", re.sub("#.*", "", scripts))
    run = {word for command in commands for word in command.split()}
    assert targets - run - RUN_BY_A_TEST.keys() - STARTS_OTHERS == set()
    assert (RUN_BY_A_TEST.keys() | STARTS_OTHERS) <= targets
    for target, test in RUN_BY_A_TEST.items():
        assert target in (ROOT / test).read_text(), (target, test)


@pytest.mark.parametrize(
    "source", sorted((ROOT / "docs" / "images").glob("*.mmd")), ids=lambda path: path.stem
)
def test_a_diagram_was_drawn_from_its_source(source: Path) -> None:
    """`make diagrams` draws it anew."""
    drawn = source.with_suffix(".svg").read_text()
    assert hashlib.sha256(source.read_bytes()).hexdigest() in drawn.partition("-->")[0]
    assert "<svg" in drawn


def pages_of(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    return {page for each in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(each)}


def test_every_page_for_users_is_in_the_sites_table_of_contents() -> None:
    """The others are in the repository, and CONTRIBUTING.md or the page of the design leads to each."""
    docs = ROOT / "docs"
    excluded = {page for page in docs.rglob("*.md") if page.is_relative_to(docs / "internals")}
    excluded.add(docs / "schema-evolution.md")
    pages = {str(page.relative_to(docs)) for page in {*docs.rglob("*.md")} - excluded}
    assert pages_of(MKDOCS["nav"]) == pages
    assert {"internals/", "schema-evolution.md"} <= set(MKDOCS["exclude_docs"].split())
    leads = "".join(page.read_text() for page in (ROOT / "CONTRIBUTING.md", docs / "design.md"))
    decisions = (docs / "internals" / "adr" / "index.md").read_text()
    assert [page.name for page in excluded if page.name not in leads + decisions] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it."""
    python = ROOT / ".venv-docs" / "bin" / "python"
    if not python.exists() and not os.environ.get("CI"):
        pytest.skip("needs .venv-docs (make docs)")
    built = tmp_path_factory.mktemp("site")
    command = [str(python), "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(built)]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return built


@pytest.mark.slow
def test_no_link_of_the_site_is_dead(site: Path) -> None:
    """MkDocs lets pages link to those that it leaves out."""
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    assert len(pages) > 30
    for page in pages:
        for target in re.findall(r'(?:href|src)="?(?![a-z]+:|[#"])([^"#?> ]+)', page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(site)}: {target}"


def test_the_readme_is_short_and_the_map_names_every_room() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 1200
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = re.findall(r"^  (\S[\w./, ]*?)  ", guide.partition("\nshared/tidemark/\n")[2], re.MULTILINE)
    named = {name.rstrip("/") for line in rooms for name in line.split(", ")}
    package = ROOT / "shared" / "tidemark"
    there = {
        entry.name
        for entry in package.iterdir()
        if entry.suffix == ".py" or (entry.is_dir() and any(entry.glob("*.*")))
    }
    assert named == there - {"__init__.py", "__pycache__"}


def test_the_readme_compares_by_the_figures_of_the_benchmarks() -> None:
    page = (ROOT / "docs" / "internals" / "benchmarks.md").read_text()
    row = re.search(r"^\| Appends a second \|(.*?)\|(.*?)\|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert row
    many = re.search(r"^\| 32 clients → 32 streams \| appends/s \| (.*?) \| (.*?) \|", page, re.MULTILINE)
    crowd = re.search(r"^\| 50 \| 32 \| (.*?) \|", page, re.MULTILINE)
    assert many
    assert crowd
    assert re.findall(r"[\d,]*\d", row[1]) == [many[2], crowd[1]]
    assert re.findall(r"\d,\d+", row[2]) == [many[1]]

"""The locks name packages, versions and hashes, and nothing of where they were made."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PIN = re.compile(r"([a-z0-9._-]+)==([0-9][\w.+!]*) ((?:--hash=sha256:[0-9a-f]{64} ?)+)")


def hashed_pins(path: Path) -> dict[str, tuple[str, str]]:
    """Version and hashes by name. Every requirement must be a pin with a hash, and nothing else."""
    text = re.sub(r"^ *#.*\n", "", path.read_text(), flags=re.MULTILINE)
    requirements = [re.sub(r"\s+", " ", line) for line in text.replace("\\\n", "").splitlines() if line]
    matches = {requirement: PIN.fullmatch(requirement) for requirement in requirements}
    assert [requirement for requirement, match in matches.items() if match is None] == []
    return {match[1]: (match[2], match[3].strip()) for match in matches.values() if match}


def pins(path: Path) -> dict[str, str]:
    return {name: version for name, (version, _) in hashed_pins(path).items()}


def lock(name: str) -> Path:
    return ROOT / "requirements" / f"{name}.txt"


def test_every_requirements_file_has_its_lock() -> None:
    """`make lock` makes one for each .in file and for the parts of pyproject.toml. `spark-base.in` is a part
    of others."""
    inputs = {path.stem for path in (ROOT / "requirements").glob("*.in")} - {"spark-base"}
    parts = {"bench", "container", "dev", "layer", "layer-otel", "local"}
    assert {path.stem for path in LOCKS} == inputs | parts


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_holds_pins_with_hashes_and_no_address(path: Path) -> None:
    """A registry's address or a path of one machine would make the lock useless on another."""
    assert hashed_pins(path)
    for leak in ("://", "file:", "--index", "--extra-index", "--find-links", "--trusted-host"):
        assert leak not in path.read_text(), leak


@pytest.mark.parametrize("path", ["Makefile", "shared/Makefile"])
def test_every_lock_is_installed_by_its_hashes(path: str) -> None:
    """What is installed from a lock, deployed or not, must be the bytes that the lock names."""
    recipes = (ROOT / path).read_text().replace("\\\n", " ").splitlines()
    installing = [
        line
        for line in recipes
        if re.search(r"(pip install|\$\(PIP\) install|PIP_INSTALL\w*[:)]).* -r ", line)
    ]
    assert installing
    without = [
        command
        for line in installing
        for command in line.split(";")
        if " -r " in command and not re.search(r"--require-hashes|PIP_INSTALL_LOCKED", command)
    ]
    assert without == []


def test_what_is_deployed_is_what_is_tested() -> None:
    """The layer's lock and that of `make run` are parts of the tests' lock, hashes included."""
    tested = hashed_pins(lock("dev"))
    for name in ("layer", "layer-otel", "local"):
        assert hashed_pins(lock(name)).items() <= tested.items()


@pytest.mark.parametrize("name", ["bench", "langgraph", "spark", "spark-4.2", "spark-next"])
def test_another_environment_runs_the_same_versions(name: str) -> None:
    """The benchmarks measure, and the Spark tests run, the same versions as the tests do."""
    tested, other = pins(lock("dev")), pins(lock(name))
    assert {each: version for each, version in other.items() if tested.get(each, version) != version} == {}


def test_the_pipeline_is_deployed_with_what_it_is_tested_with() -> None:
    """Spark itself is not packed: EMR has it, in the version of the tests' oldest PySpark."""
    deployed, tested = hashed_pins(lock("pipeline")), hashed_pins(lock("spark"))
    assert deployed.items() <= tested.items()
    assert "pyspark" not in deployed


def test_npms_lock_names_hashes_and_no_registry_and_is_for_development_alone() -> None:
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    fetched = {path: package for path, package in packages.items() if path}
    for path, package in fetched.items():
        assert "resolved" not in package, path
        assert {"integrity", "dev"} <= package.keys(), path
    assert re.search(r"^run: \$\(LOCAL\) ##", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_actions_are_named_by_commit_and_the_base_image_by_digest() -> None:
    """A tag can be moved."""
    workflows = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    used = re.findall(r"uses: (.*)", "".join(workflows))
    assert len(workflows) == 2
    assert [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", each)] == []
    images = re.findall(r"^FROM (.*)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert images
    assert [each for each in images if not re.fullmatch(r"python:3\.14-slim@sha256:[0-9a-f]{64}", each)] == []


def make(folder: Path, program: str, does: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`make` in a folder, with a line of shell in place of a program."""
    (folder / program).write_text(f"#!/bin/sh\n{does}\n")
    (folder / program).chmod(0o755)
    return subprocess.run(
        ["make", "--no-print-directory", "-f", str(ROOT / "Makefile"), *arguments],
        cwd=folder,
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("resolved", "code"), [("sha256:" + "5e" * 32, 0), ("", 2), ("sha256:5e", 2), ("ERROR: no such host", 2)]
)
def test_the_base_images_digest_is_renewed_by_one_command(tmp_path: Path, resolved: str, code: int) -> None:
    """What is no digest changes nothing. Another command stands in for Docker."""
    before = (ROOT / "Dockerfile").read_text()
    (tmp_path / "Dockerfile").write_text(before)
    ran = make(tmp_path, "docker", f"echo '{resolved}'", "base-image")
    assert ran.returncode == code, ran.stderr
    wanted = re.sub("sha256:[0-9a-f]{64}", resolved, before) if code == 0 else before
    assert (tmp_path / "Dockerfile").read_text() == wanted


@pytest.mark.parametrize(
    ("version", "said"), [("0.1.0", ""), ("9.9.9", "pyproject.toml does not have the version '9.9.9'")]
)
def test_a_release_is_a_signed_tag_with_its_section_of_the_changelog(
    tmp_path: Path, version: str, said: str
) -> None:
    (tmp_path / "CHANGELOG.md").write_text(
        "## [Unreleased]\n\n- later\n\n## [0.1.0] - 2026-11-21\n\n- first\n"
    )
    (tmp_path / "pyproject.toml").write_text('version = "0.1.0"\n')
    ran = make(tmp_path, "git", 'echo "$@" >>said; cat >>said', "release", f"VERSION={version}")
    assert (ran.returncode == 0) == (said == ""), ran.stderr
    assert said in ran.stderr
    if not said:
        tagged = (tmp_path / "said").read_text()
        assert re.match(r"tag --sign .* v0\.1\.0\n", tagged)
        assert "- first" in tagged
        assert "- later" not in tagged

"""The locks name packages and versions, not the machine or the registry they were made with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted(ROOT.glob("requirements*.txt"))
PIN = re.compile(r"([a-z0-9._-]+)==([0-9][\w.+!]*)((?: --hash=sha256:[0-9a-f]{64})*)(?: +#.*)?")


def pins(path: Path) -> dict[str, str]:
    """Every line that is not a comment must be a pin, with or without hashes: no address, option or range."""
    text = re.sub(r" +\\\n +", " ", path.read_text())
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    matches = {line: PIN.fullmatch(line) for line in lines}
    assert [line for line, match in matches.items() if match is None] == []
    return {match[1]: match[2] for match in matches.values() if match}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_holds_pins_alone(path: Path) -> None:
    assert pins(path)
    assert "://" not in path.read_text()


def test_what_is_deployed_is_what_is_tested() -> None:
    """The layer's lock and the local stack's are parts of the one that the tests run with."""
    tested = pins(ROOT / "requirements-dev.txt")
    for name in ("requirements.txt", "requirements-local.txt"):
        assert pins(ROOT / name).items() <= tested.items()


def test_the_benchmarks_measure_what_is_deployed() -> None:
    """Installed over the others, the plot's packages change no version."""
    tested = pins(ROOT / "requirements-dev.txt")
    plot = pins(ROOT / "requirements-bench.txt")
    assert {name: version for name, version in plot.items() if tested.get(name, version) != version} == {}


def test_the_pipeline_is_deployed_with_what_it_is_tested_with() -> None:
    """But for Spark itself, which is EMR's, and whose version is that of the tests' floor."""
    deployed, tested = pins(ROOT / "requirements-pipeline.txt"), pins(ROOT / "requirements-spark.txt")
    assert deployed.items() <= tested.items()
    assert "pyspark" not in deployed


def test_the_npm_lock_names_hashes_and_no_registry() -> None:
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    fetched = {path: package for path, package in packages.items() if path}
    assert [path for path, package in fetched.items() if "resolved" in package] == []
    assert [path for path, package in fetched.items() if "integrity" not in package] == []

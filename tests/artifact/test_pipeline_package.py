"""What `make packagespark` made, by itself: all that the jobs import beside Spark, for EMR's machine."""

import json
import os
import subprocess
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pipeline import package
from tests.infra.test_locks import pins

pytestmark = pytest.mark.artifact

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist" / "pipeline"
SPARK = ROOT / ".venv-spark"
PROBE = Path(__file__).with_name("pipeline_probe.py")
MEGABYTE = 1024 * 1024


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    if not (DIST / "environment.tar.gz").is_file():
        pytest.fail("there is no package: run `make packagespark` first")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpacked, as Spark does it for the driver and each executor."""
    directory = tmp_path_factory.mktemp("package") / "environment"
    with tarfile.open(DIST / "environment.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return directory


@pytest.fixture(scope="module")
def natives(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spark, and the compiled packages in the same versions as they are installed for this machine."""
    if not (SPARK / "bin" / "python").exists():
        pytest.fail("Spark is not here: run `make testspark` first")
    directory = tmp_path_factory.mktemp("natives")
    [installed] = SPARK.glob("lib/python*/site-packages")
    compiled = {path.relative_to(environment).parts[0].split(".")[0] for path in environment.rglob("*.so")}
    wanted = compiled | {"pyspark", "py4j"}
    for found in installed.iterdir():
        if found.name.split(".")[0] in wanted:
            (directory / found.name).symlink_to(found)
    return directory


def test_it_holds_the_jobs_and_what_they_need() -> None:
    names = {path.name for path in DIST.iterdir()}
    jobs = {f"{name}.py" for name in package.JOBS}
    assert names == jobs | {"environment.tar.gz", "tidemark.zip", "requirements.txt"}
    for name in jobs:
        assert (DIST / name).read_bytes() == (ROOT / "pipeline" / name).read_bytes(), f"{name}: package again"
    assert (DIST / "requirements.txt").read_bytes() == package.LOCK.read_bytes()
    assert (DIST / "environment.tar.gz").stat().st_size < 150 * MEGABYTE


def test_it_holds_what_the_lock_names_and_no_spark(environment: Path) -> None:
    infos = [path.stem.split("-") for path in environment.glob("*.dist-info")]
    assert {name.lower().replace("_", "-"): version for name, version in infos} == pins(package.LOCK)
    assert not (environment / "pyspark").exists()
    assert not (environment / "tidemark" / "server").exists()


def test_what_is_compiled_is_for_emr(environment: Path) -> None:
    """Of the processor's kind, and for the release's Python or every one."""
    libraries = [path for path in environment.rglob("*.so*") if path.is_file()]
    assert libraries
    for library in libraries:
        header = library.read_bytes()[:20]
        assert header[:4] == b"\x7fELF", library
        assert int.from_bytes(header[18:20], "little") == 0xB7, f"{library.name} is not for arm64"
        assert "cpython-" not in library.name or "cpython-311-" in library.name, library.name


def test_every_job_runs_out_of_it_alone(environment: Path, natives: Path) -> None:
    """Each module is imported, and each job's --help answered, without site-packages and without the
    project; nothing comes from anywhere else."""
    places = {"environment": str(environment), "natives": str(natives), "jobs": str(DIST)}
    task = places | {"names": package.JOBS}
    ran = subprocess.run(
        [str(SPARK / "bin" / "python"), "-I", "-S", str(PROBE)],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        check=False,
        cwd=DIST,
        env={"PATH": os.environ["PATH"]},
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout.rpartition("REPORT")[2])
    assert report["jobs"] == list(package.JOBS)
    standard = Path(sysconfig.get_path("stdlib"))
    for name, origin in report["origins"].items():
        path = Path(origin)
        if path == PROBE or any(path.is_relative_to(each) for each in (environment, natives, DIST)):
            continue
        assert path.is_relative_to(standard) or "lib-dynload" in path.parts, (name, origin)
        assert "site-packages" not in path.parts, (name, origin)


def test_glues_package_is_the_same_source() -> None:
    """Without what is compiled: Glue installs that by the lock."""
    with zipfile.ZipFile(DIST / "tidemark.zip") as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    assert found == {name: path.read_bytes() for name, path in package.sources()}, "package again"
    assert "tidemark/spark/source.py" in found


def test_the_environment_is_of_this_source(environment: Path) -> None:
    for name, path in package.sources():
        assert (environment / name).read_bytes() == path.read_bytes(), f"{name}: package again"

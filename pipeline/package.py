"""Pack the jobs for EMR Serverless and Glue: `make packagespark`.

| in `--out` | |
| --- | --- |
| `archive.py` … `stats.py` | the jobs, each an entry point |
| `environment.tar.gz` | the jobs' imports except Spark, for EMR's processor and Python (`--archives`) |
| `tidemark.zip`, `requirements.txt` | the same for Glue, which installs packages itself |

pip downloads wheels for the given platform and Python, so neither that Python nor Docker is needed. The same
sources give the same bytes, so that unchanged files are not uploaded again.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOCK: Final = ROOT / "requirements" / "pipeline.txt"
JOBS: Final = ("archive", "ingest", "replay", "stats")
#: Subpackages that only a server, its functions or its operators use.
LEFT_OUT: Final = frozenset(
    {"cli", "engine", "http", "janitor", "ops", "server", "subscriptions", "testing.py", "wake"}
)
#: Tests and C headers, a tenth of the files that every worker would unpack.
PRUNED: Final = ("pandas/tests", "pyarrow/tests", "pyarrow/include", "bin")
_DAY_ONE: Final = (1980, 1, 1, 0, 0, 0)


def install(target: Path, platform: str, python: str) -> None:
    platforms = [f"manylinux_2_17_{platform}", f"manylinux2014_{platform}", f"manylinux_2_28_{platform}"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += [
        "--no-compile",
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "--implementation",
        "cp",
    ]
    command += ["--python-version", python, "--target", str(target), "-r", str(LOCK)]
    command += [word for each in platforms for word in ("--platform", each)]
    subprocess.run(command, check=True)
    for name in PRUNED:
        shutil.rmtree(target / name, ignore_errors=True)


def sources() -> Iterator[tuple[str, Path]]:
    """Yield the package's files with their names in the archive."""
    shared = ROOT / "shared"
    for path in sorted((shared / "tidemark").rglob("*.py")):
        name = path.relative_to(shared)
        if name.parts[1] not in LEFT_OUT:
            yield str(name), path


def pack_environment(directory: Path, out: Path) -> None:
    files = [(str(path.relative_to(directory)), path) for path in directory.rglob("*") if path.is_file()]
    with (
        out.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, path in sorted([*files, *sources()]):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)


def pack_package(out: Path) -> None:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sources():
            archive.writestr(zipfile.ZipInfo(name, _DAY_ONE), path.read_bytes(), zipfile.ZIP_DEFLATED)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="package", description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "pipeline")
    parser.add_argument("--platform", default="aarch64", help="aarch64 (default) or x86_64")
    parser.add_argument("--python", default="3.11", help="EMR's Python (default: 3.11)")
    given = parser.parse_args(arguments)
    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="tidemark-package-") as name:
        install(Path(name), given.platform, given.python)
        pack_environment(Path(name), given.out / "environment.tar.gz")
    pack_package(given.out / "tidemark.zip")
    shutil.copyfile(LOCK, given.out / "requirements.txt")
    for job in JOBS:
        shutil.copyfile(ROOT / "pipeline" / f"{job}.py", given.out / f"{job}.py")
    for path in sorted(given.out.iterdir()):
        sys.stdout.write(f"{path.stat().st_size:>12,}  {path}\n")


if __name__ == "__main__":
    main(sys.argv[1:])

"""`python -m tests.mutations [words of a name …]`: which of the planted bugs the tests catch.

Each is planted in a copy of the tree, so that nothing here changes. It ends with 1 where one survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutations.table import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
#: A bug may also make a test wait for ever: that is found too.
LIMIT_SECONDS = 180
LINKED = (".venv", "node_modules")


def main(words: list[str]) -> int:
    chosen = [each for each in MUTATIONS if not words or any(word in each.name for word in words)]
    survived = []
    with tempfile.TemporaryDirectory(prefix="tidemark-mutations-") as folder:
        copy_tree(Path(folder))
        for each in chosen:
            began = time.monotonic()
            verdict = each.covered_by and f"not run: {each.covered_by}"
            verdict = verdict or judge(Path(folder), each)
            print(f"{verdict:8} {time.monotonic() - began:5.0f} s  {each.file}: {each.name}", flush=True)
            if verdict not in {"caught", "caught (too long)"} and not each.covered_by:
                survived.append(each)
    print(f"{len(chosen)} bugs, {len(survived)} survived")
    return 1 if survived else 0


def copy_tree(folder: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for name in LINKED:
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)


def judge(folder: Path, each: Mutation) -> str:
    """Plants the bug, runs the tests, and takes it out again. Tests that cannot run at all catch nothing."""
    place = folder / "shared" / "tidemark" / each.file
    text = place.read_text()
    place.write_text(text.replace(each.before, each.after))
    tests = [f"tests/{name}" for name in each.tests]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "--hypothesis-seed=1", *tests]
    environment = os.environ | {"PYTHONPATH": f"{folder}:{folder / 'shared'}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            command, cwd=folder, env=environment, check=False, capture_output=True, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return "caught (too long)"
    finally:
        place.write_text(text)
    return {0: "SURVIVED", 1: "caught"}.get(run.returncode, f"BROKEN {run.returncode}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

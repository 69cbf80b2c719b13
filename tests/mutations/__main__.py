"""`python -m tests.mutations [words of a bug …]`: which planted bugs the tests catch, and which test does.

Each is planted in a copy of the tree, so that nothing here changes. It ends with 1 where a bug survives, and
where the tests cannot run.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutations.table import BUGS, ROOT, Bug

LINKED = (".venv", ".venv-spark", "node_modules")
#: A bug may make a test wait for ever: that is found too. Below pytest's own limit, so it is the only one.
HANG_SECONDS = 600
OPTIONS = ("-x", "-q", "-n", "0", "-rfE", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=1")


def main(words: list[str]) -> int:
    survived = 0
    with tempfile.TemporaryDirectory(prefix="tidemark-mutations-") as folder:
        copy = Path(folder, "tree")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "node_modules", "__pycache__"))
        for name in filter(lambda name: (ROOT / name).exists(), LINKED):
            (copy / name).symlink_to(ROOT / name)
        for bug in BUGS:
            if not words or any(word in bug.name for word in words):
                began, verdict = time.monotonic(), judge(copy, bug)
                print(f"{time.monotonic() - began:5.0f} s  {bug.name}: {verdict}", flush=True)
                survived += not verdict.startswith("caught")
    return bool(survived)


def judge(copy: Path, bug: Bug) -> str:
    """Plants the bug, runs its tests, and takes it out again. Tests that cannot run at all catch nothing."""
    place = copy / bug.path
    source = place.read_text()
    place.write_text(bug.plant(source))
    environment = os.environ | {"PYTHONPATH": f"{copy}:{copy / 'shared'}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, *bug.tests],
            cwd=copy,
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "caught (hangs)"
    finally:
        place.write_text(source)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    verdict = {0: "SURVIVED", 1: "caught"}.get(run.returncode, f"BROKEN {run.returncode}")
    return f"{verdict} by {failed[1]}" if failed else verdict


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

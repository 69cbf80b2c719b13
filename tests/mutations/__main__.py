"""`python -m tests.mutations [words of a bug …]`: which planted bugs the tests catch, and which test does.

Each is planted in a copy of the tree, so that nothing here changes. `WORKERS` bugs are tried at once, each in
a copy of its own; without `WORKERS`, as many as this machine has cores. It ends with 1 where a bug survives,
and where the tests cannot run.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutations.table import BUGS, ROOT, Bug

LINKED = (".venv", ".venv-spark", "node_modules")
#: A bug may make a test wait for ever: that is found too. Below pytest's own limit, so it is the only one.
HANG_SECONDS = 600
OPTIONS = ("-x", "-q", "-n", "0", "-rfE", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=1")


def main(words: list[str]) -> int:
    chosen = [bug for bug in BUGS if not words or any(word in bug.name for word in words)]
    workers = max(1, int(os.environ.get("WORKERS") or os.cpu_count() or 1))
    copies: SimpleQueue[Path] = SimpleQueue()

    def is_caught(bug: Bug) -> bool:
        began, copy = time.monotonic(), copies.get()
        try:
            verdict = judge(copy, bug)
        finally:
            copies.put(copy)
        print(f"{time.monotonic() - began:5.0f} s  {bug.name}: {verdict}", flush=True)
        return verdict.startswith("caught")

    with tempfile.TemporaryDirectory(prefix="tidemark-mutations-") as folder:
        for worker in range(workers):
            copies.put(copy_tree(Path(folder) / str(worker)))
        with ThreadPoolExecutor(workers) as pool:
            caught = list(pool.map(is_caught, chosen))
    print(f"{len(caught)} bugs, {caught.count(False)} not caught")
    return 0 if caught and all(caught) else 1


def copy_tree(folder: Path) -> Path:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for name in LINKED:
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    return folder


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

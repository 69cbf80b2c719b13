"""`python -m benchmarks`: Tidemark and the Node reference server in one run, with ratios."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.contest import Contestant, run_contest
from benchmarks.report import as_json, lines_of, markdown
from benchmarks.rows import Row, chosen_rows
from tests.conformance.servers import (
    START_SECONDS,
    Server,
    ServerDidNotStart,
    reference_server,
    running,
    temporary_directory,
    tidemark_server,
)

RESULTS = Path(__file__).with_name("results")
WAYS = {"asgi": "Tidemark", "lambda": "Tidemark, VIA=lambda", "packs": "Tidemark, packed"}
#: Packs what is 20 seconds old: the rows that read small messages give it the time (`rows.py`).
PACKING = {"PACK_AFTER_SECONDS": "20", "JANITOR_SECONDS": "2"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--ways", default="asgi", help="comma-separated: asgi, lambda, packs (default: asgi)")
    parser.add_argument("--rows", default=None, help="comma-separated names of rows (default: all)")
    parser.add_argument("--repeats", type=int, default=5, help="how often each row is taken (default: 5)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where latest.md, .json and .png go")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    rows = chosen_rows(given.rows)
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        ours = [start_contestant(stack, way) for way in given.ways.split(",")]
        theirs = start_contestant(stack, "reference")
        # Interleaved as ours, theirs, ours, theirs, so that a slow minute of the machine hits both.
        run_contest([*ours, theirs], rows, given.repeats)
        for contestant in [*ours, theirs]:
            contestant.server.resume()
    write_results(given.results, rows, ours, theirs, given.repeats)
    print(f"done in {time.monotonic() - start:.0f} s, written to {given.results}/latest.*")
    return 1 if any(each.failures for each in [*ours, theirs]) else 0


def start_contestant(stack: contextlib.ExitStack, way: str) -> Contestant:
    directory = stack.enter_context(temporary_directory())
    if way == "reference":
        contestant = Contestant("Node, files", reference_server(directory))
    else:
        via, environment = ("asgi", PACKING) if way == "packs" else (way, {})
        contestant = Contestant(WAYS[way], tidemark_server(via, directory, **environment))
    stack.enter_context(running(contestant.server))
    if way != "reference":
        wait_until_ready(contestant.server)
    contestant.server.pause()
    return contestant


def wait_until_ready(server: Server) -> None:
    """Until the server says that it is ready: it asks for its own health first, and one that is paused for a
    minute before it has the answer takes itself for sick and ends. Raises ServerDidNotStart."""
    deadline = time.monotonic() + START_SECONDS
    while "is ready at" not in server.log_tail():
        if time.monotonic() > deadline:
            raise ServerDidNotStart(
                f"{server.name} is not ready after {START_SECONDS:.0f} s\n{server.log_tail()}"
            )
        time.sleep(0.05)


def write_results(
    directory: Path, rows: tuple[Row, ...], ours: list[Contestant], theirs: Contestant, repeats: int
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    lines = lines_of(rows, ours, theirs)
    text = markdown(lines, ours, theirs, repeats)
    print(f"\n{text}")
    (directory / "latest.md").write_text(text)
    (directory / "latest.json").write_text(as_json(lines, [*ours, theirs], repeats))
    draw_plot(directory)


def draw_plot(directory: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed (the extra `bench` has it)")
        return
    files = [str(directory / "latest.json"), str(directory / "latest.png")]
    subprocess.run([sys.executable, "-m", "benchmarks.plot", *files], check=True)


if __name__ == "__main__":
    sys.exit(main())

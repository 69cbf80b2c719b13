"""One run: every server under the same load, in turn, while the others stand still."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.rows import Load, Row
from tests.conformance.servers import ROOT, Server, node

GENERATOR = Path(__file__).with_name("load.mjs")
LOAD_SECONDS = 150
# After a pause a server first catches up on its timers; that is not what is measured.
SETTLE_SECONDS = 0.3

Measures = dict[str, float]


class LoadFailed(RuntimeError):
    """The generator met an unexpected answer, a lost append or its time limit."""


@dataclass
class Contestant:
    """A server, and per row the measures of each repeat."""

    title: str
    server: Server
    measures: dict[str, list[Measures]] = field(default_factory=dict)
    prepared: set[Load] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)

    def median(self, row: Row, key: str) -> float | None:
        """None when the row failed on this server."""
        values = [each[key] for each in self.measures.get(row.name, [])]
        return statistics.median(values) if values else None


def run_contest(contestants: Sequence[Contestant], rows: Sequence[Row], repeats: int) -> None:
    """Fill in the contestants' measures. The servers are paused when it begins, and again when it ends."""
    total, began = len(rows) * repeats * len(contestants), time.monotonic()
    done = 0
    for row in rows:
        for _ in range(repeats):
            for contestant in contestants:
                take(contestant, row)
                done += 1
                print(progress_line(done, total, time.monotonic() - began), file=sys.stderr, flush=True)


def progress_line(done: int, total: int, seconds: float) -> str:
    """How far the run is. Rows take different times, so what is left is a guess by those that are done."""
    left = seconds / done * (total - done)
    return f"  {done} of {total} measurements, {seconds:.0f} s; about {left:.0f} s are left"


def take(contestant: Contestant, row: Row) -> None:
    """One repeat. A failure is printed and kept, and the run goes on: the other rows still say something."""
    try:
        with awake(contestant):
            prepare(contestant, row)
            measures = run_load(contestant.server.port, row.load)
    except LoadFailed as failure:
        contestant.failures.append(f"{row.name}, {failure}")
        print(f"  {row.name:18} {contestant.title:20} FAILED {failure}", flush=True)
        return
    contestant.measures.setdefault(row.name, []).append(measures)
    shown = ", ".join(f"{key} {value:.2f}" for key, value in measures.items())
    print(f"  {row.name:18} {contestant.title:20} {shown}", flush=True)


def prepare(contestant: Contestant, row: Row) -> None:
    if row.prepare is not None and row.prepare not in contestant.prepared:
        run_load(contestant.server.port, row.prepare)
        contestant.prepared.add(row.prepare)
    if row.cold:
        contestant.server.stop()
        contestant.server.start()


@contextlib.contextmanager
def awake(contestant: Contestant) -> Iterator[None]:
    """Only one server runs at a time, so that nothing another does in its idle time is counted."""
    contestant.server.resume()
    time.sleep(SETTLE_SECONDS)
    try:
        yield
    finally:
        contestant.server.pause()


def run_load(port: int, load: Load) -> Measures:
    """Raises `LoadFailed` with what the generator said; it ends by itself at its time limit."""
    command = [node(), str(GENERATOR), str(port), load.row, load.options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LOAD_SECONDS, check=False)
    if run.returncode != 0:
        raise LoadFailed(f"{load.row}: {run.stderr.strip()}")
    measures: Measures = json.loads(run.stdout)
    return measures

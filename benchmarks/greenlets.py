"""What the greenlets of `VIA=asgi` gain over threads: `python -m benchmarks.greenlets`.

Two servers take the same load in turn. One makes its storage calls in greenlets on the event loop, as
`make run` does; the other makes each on a thread of a pool. CPU is that of the server's process, without the
engine and the load generator. The data lie in memory where there is `/dev/shm`, so that the disk is no limit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Final
from unittest import mock

from benchmarks.contest import Contestant, awake, run_load
from benchmarks.rows import Load, load
from tests.conformance.servers import running, tidemark_server
from tidemark.http.backend import Backend, many_at_once
from tidemark.local.configuration import LocalEngines
from tidemark.service.stores import MEGABYTE, connect
from tidemark.settings import Settings

SECONDS: Final = 2.5
LOADS: Final = {
    "32 clients → 32 streams": load("fan", clients=32, streams=32, seconds=SECONDS),
    "32 clients → 1 stream": load("fan", clients=32, streams=1, seconds=SECONDS),
    "1 client → 1 stream": load("fan", clients=1, streams=1, seconds=SECONDS),
}
MEMORY: Final = Path("/dev/shm")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.greenlets", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="how often each load is taken (default: 5)")
    parser.add_argument("--serve-with-threads", action="store_true", help="be the second of the two servers")
    given = parser.parse_args()
    if given.serve_with_threads:
        serve_with_threads()
        return
    with contextlib.ExitStack() as stack:
        contestants = [start(stack, title) for title in ("greenlets", "threads")]
        print("| | greenlets: appends/s | µs of CPU | threads: appends/s | µs of CPU | appends | CPU |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        for title, each in LOADS.items():
            print_row(title, [[take(one, each) for one in contestants] for _ in range(given.pairs)])
        for one in contestants:
            one.server.resume()


def start(stack: contextlib.ExitStack, title: str) -> Contestant:
    parent = MEMORY if MEMORY.is_dir() else None
    directory = stack.enter_context(tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True))
    # Puts are grouped on the loop alone, and that is not what is compared.
    server = tidemark_server("asgi", Path(directory), GROUP_PUTS="false")
    if title == "threads":
        server.command = [sys.executable, "-m", "benchmarks.greenlets", "--serve-with-threads"]
    stack.enter_context(running(server))
    server.pause()
    return Contestant(title, server)


def take(contestant: Contestant, wanted: Load) -> tuple[float, float]:
    """Appends per second, and the server's CPU seconds for each."""
    with awake(contestant):
        before = cpu_seconds(contestant)
        measures = run_load(contestant.server.port, wanted)
        spent = cpu_seconds(contestant) - before
    return measures["per_second"], spent / measures["count"]


def cpu_seconds(contestant: Contestant) -> float:
    """Of the process, as proc(5) says it."""
    assert contestant.server.process is not None
    stat = Path(f"/proc/{contestant.server.process.pid}/stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def print_row(title: str, pairs: list[list[tuple[float, float]]]) -> None:
    """Medians; a ratio is the median of the pairs' ratios, and over 1 where greenlets are better."""
    appends = statistics.median(greenlets[0] / threads[0] for greenlets, threads in pairs)
    cpu = statistics.median(threads[1] / greenlets[1] for greenlets, threads in pairs)
    cells = [
        f"{statistics.median(pair[which][0] for pair in pairs):,.0f} | "
        f"{statistics.median(pair[which][1] for pair in pairs) * 1e6:.0f}"
        for which in (0, 1)
    ]
    print(f"| {title} | {' | '.join(cells)} | {appends:.2f} | {cpu:.2f} |", flush=True)


def serve_with_threads() -> None:
    with mock.patch("tidemark.local.backend.create_local_backend", create_backend_of_threads):
        sys.argv = ["tidemark.local"]
        runpy.run_module("tidemark.local", run_name="__main__", alter_sys=True)


def create_backend_of_threads(settings: Settings, _engines: LocalEngines) -> Backend:
    return many_at_once(connect(settings, recent_bytes=64 * MEGABYTE), settings)


if __name__ == "__main__":
    main()

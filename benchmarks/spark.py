"""`python -m benchmarks.spark`: rows per CPU-second of the data source and of Spark's own, in one run.

CPU time includes the driver, its JVM and every Python worker, but no servers. A row is 226 bytes of JSON.
The measures run in turn, several times, and the best run of each counts. Every query costs CPU before its
first row; the last column subtracts the cost of a query of few rows.

`--quick` only checks that everything runs, within minutes: few rows, and each measure once.

`python -m benchmarks.spark --cores` compares the duration of a read with local[1] and local[2]. The machine
must be idle.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.spark_floors import FLOORS, Floor
from benchmarks.spark_standin import PAGE_ROWS, STORED, row
from pipeline.archive import map_by_tasks
from tidemark.protocol.offset import render_offset
from tidemark.spark.archive import FILE_BYTES
from tidemark.spark.job import open_session
from tidemark.spark.lake import LakeTable
from tidemark.spark.lake_files import write_partitions
from tidemark.spark.options.read import DEFAULT_COLUMNS, parse_read_options
from tidemark.spark.queries import load_heads, pack, plan_partitions
from tidemark.spark.reach import ArchiveBatch
from tidemark.spark.readers import connect
from tidemark.spark.readers.columns import BATCH_ROWS
from tidemark.spark.whole import read_whole

RESULTS = Path(__file__).with_name("results")
TICKS = os.sysconf("SC_CLK_TCK")
#: Shares of the rate of Spark's text source in the same run: a busy machine changes a share less than a rate.
TARGETS = {
    "dynamodb, 1 message an item": 0.10,
    "dynamodb, 100 messages an item": 0.15,
    "dynamodb, packs": 0.30,
    "http": 0.27,
    "staged write": 0.20,
}
#: The speed of local[2] relative to local[1].
CORES_TARGET = 1.7
#: Measured besides a read of all columns, because a text source has one column.
NARROW = "offset,value"
#: Rows of the query that measures the cost before the first row.
FEW = 2_000
#: Enough for a page of each stream over HTTP, and a pack.
QUICK = 40_000
Measures = dict[str, tuple[int, Callable[[], object]]]
"""By name: the number of rows, and the function to measure."""


def cpu_seconds(root: int) -> dict[int, float]:
    """Return the CPU time of a process and its descendants, by process id. Ended children count for their
    parent."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
                used[int(entry.name)] = sum(map(int, fields[11:15])) / TICKS
    found, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        found[pid] = used.get(pid, 0.0)
        waiting += children.get(pid, [])
    return found


@contextlib.contextmanager
def stand_in(rows: int, per_item: int) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.spark_standin", str(rows), str(per_item)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait()


def drain(frame: Any) -> None:
    """Build every column of every row, and drop it."""
    frame.write.format("noop").mode("overwrite").save()


def table(url: str) -> dict[str, str]:
    return {"transport": "dynamodb", "table": "t", "dynamodbEndpoint": url, "region": "us-east-1"}


def measures(spark: Any, directory: Path, rows: int, urls: dict[str, str], files: int) -> Measures:
    lines = str(directory / f"lines-{rows}")
    spark.range(rows, numPartitions=files).rdd.map(lambda each: row(each.id).decode()).saveAsTextFile(lines)
    schema = "key STRING, n BIGINT, at STRING, f DOUBLE, text STRING"
    sparks_own: Measures = {
        "Spark's text": (rows, lambda: drain(spark.read.text(lines))),
        "Spark's json": (rows, lambda: drain(spark.read.schema(schema).json(lines))),
    }
    sink = {"url": urls["many"], "stream": "bench", "stagingDir": str(directory / "staging")}
    lake = lake_reads(spark, directory, rows, table(urls["many"]) | {"subscribe": "bench"})
    return sparks_own | reads(spark, rows, urls) | lake | writes(spark, rows, lines, sink)


def reads(spark: Any, rows: int, urls: dict[str, str]) -> Measures:
    """Return the measures with all columns, and with the columns of NARROW."""
    batch_rows = 2 * min(BATCH_ROWS, rows // 2)
    packs = table(urls["packs"]) | {"s3Endpoint": urls["packs"], "blobBucket": "b", "subscribe": "bench"}
    # Over HTTP there are two streams of whole pages alone.
    page_rows = 2 * (rows // PAGE_ROWS * PAGE_ROWS)
    floors = {
        name: ("floor", rows // batch_rows * batch_rows, {"rows": str(rows), "work": work})
        for work, name in FLOORS.items()
    }
    ours = {
        "dynamodb, 1 message an item": ("tidemark", rows, table(urls["single"]) | {"subscribe": "bench"}),
        "dynamodb, 100 messages an item": ("tidemark", rows, table(urls["many"]) | {"subscribe": "bench"}),
        "dynamodb, packs": ("tidemark", rows, packs),
        "http": ("tidemark", page_rows, {"url": urls["many"], "subscribe": "a,b"}),
    }

    def read(source: str, options: Mapping[str, str]) -> Callable[[], None]:
        return lambda: drain(spark.read.format(source).options(**options).load())

    found: Measures = {}
    for name, (source, count, options) in (floors | ours).items():
        found[name] = (count, read(source, options))
        found[f"{name}, columns {NARROW}"] = (count, read(source, options | {"columns": NARROW}))
    return found


def lake_reads(spark: Any, directory: Path, rows: int, options: dict[str, Any]) -> Measures:
    """A stream of which 99 of 100 messages are in a lake, and the lake's files by Spark's own reader."""
    archived = rows * 99 // 10_000 * 100
    place = str(directory / f"lake-{rows}")
    catalog = {"type": "sql", "uri": f"sqlite:///{place}.db", "warehouse": f"file://{place}"}
    asked = parse_read_options(options | {"bytesPerPartition": str(FILE_BYTES)}, streaming=False)
    asked = replace(asked, columns=(*DEFAULT_COLUMNS, "key"))
    reader, begin = connect(asked.connection), load_heads(asked, connect(asked.connection))["bench"].earliest
    batch = ArchiveBatch(
        "v1", {"bench": begin}, {"bench": begin.at(render_offset(archived * STORED))}, {}, {}
    )

    def archive(name: str) -> list[str]:
        """Return the files of a new table."""
        lake = LakeTable("default", catalog, name)
        lake.ensure()
        packs = pack(plan_partitions(asked, reader, batch.start, batch.end), FILE_BYTES)
        place = lake.place()
        written = map_by_tasks(spark, partial(write_partitions, asked, place), packs)
        lake.add(place, written, batch)
        return [task.file.file_path for task in lake.load().scan().plan_files()]

    files, number = archive("lake.messages"), itertools.count()

    def whole(columns: str) -> Callable[[], None]:
        wanted = options | {"columns": columns}
        return lambda: drain(read_whole(spark, "lake.messages", catalog_properties=catalog, **wanted))

    def parquet(columns: str) -> Callable[[], None]:
        names = ["time" if name == "timestamp" else name for name in columns.split(",")]
        return lambda: drain(spark.read.parquet(*files).select(*names))

    found: Measures = {
        "archive": (archived, lambda: archive(f"lake.again{next(number)}")),
        "Spark's parquet sink, the lake's rows": (
            archived,
            lambda: spark.read.parquet(*files).write.mode("overwrite").parquet(f"{place}-sink"),
        ),
    }
    for suffix, columns in (("", ",".join(DEFAULT_COLUMNS)), (f", columns {NARROW}", NARROW)):
        found[f"Spark's parquet, the lake's files{suffix}"] = (archived, parquet(columns))
        found[f"whole, 99 % in the lake{suffix}"] = (rows, whole(columns))
    return found


def writes(spark: Any, rows: int, lines: str, sink: Mapping[str, str]) -> Measures:
    def write(target: str, options: Mapping[str, str]) -> tuple[int, Callable[[], None]]:
        return (
            rows,
            lambda: spark.read.text(lines).write.format(target).mode("append").options(**options).save(),
        )

    return {
        "Python sink that drops its rows": write("floor", {}),
        "Python sink that parses its rows, and drops them": write("floor", {"work": "parse"}),
        "staged write": write("tidemark", sink),
    }


def measure(jvm: int, act: Callable[[], object]) -> float:
    """Return the CPU-seconds of a call. Repeats it if Spark ended an idle worker meanwhile: that worker's CPU
    time is lost."""
    while True:
        before, driver = cpu_seconds(jvm), time.process_time()
        act()
        after, driver = cpu_seconds(jvm), time.process_time() - driver
        if before.keys() <= after.keys():
            # The kernel counts less than a tick as 0.
            return max(1 / TICKS, driver + sum(after.values()) - sum(before.values()))


def best_of(rounds: int, jvm: int, taken: Measures) -> dict[str, float]:
    """Return the fewest CPU-seconds of each. The first round warms up workers, JIT compiler and pages."""
    best: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, (count, act) in taken.items():
            seconds = measure(jvm, act)
            if number:
                best[name] = min(seconds, best.get(name, seconds))
            print(f"round {number}, {name}: {count} rows, {seconds:.2f} CPU-s", flush=True)
    return best


def table_head(*names: str) -> list[str]:
    """Return the head of a Markdown table whose first column has no name."""
    return [f"| | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]


def report(rows: dict[str, int], best: dict[str, float], few: dict[str, float], *, judged: bool) -> str:
    """Return the table of results. `few` has the CPU-seconds of each measure with few rows. Unless `judged`,
    the targets are left out."""
    text = "Spark's text"
    head = ("rows per CPU-second", "beside text", "to reach", "before the first row, CPU-s", "without that")
    lines = table_head(*head)
    for name, seconds in best.items():
        rate = rows[name] / seconds
        share = rate / (rows[text] / best[text])
        target = TARGETS.get(name.removesuffix(f", columns {NARROW}")) if judged else None
        verdict = "" if target is None else f"{target:.2f} {'✓' if share >= target else '✗'}"
        marginal, of_text = ((best[each] - few[each]) / rows[each] for each in (name, text))
        # In a quick run the difference may be 0 or less.
        without = f"{of_text / marginal:.2f}" if marginal > 0 and of_text > 0 else ""
        lines.append(f"| {name} | {rate:,.0f} | {share:.2f} | {verdict} | {few[name]:.2f} | {without} |")
    return "\n".join(lines)


def started(stack: contextlib.ExitStack, rows: int, files: int = 2) -> tuple[Any, Measures]:
    """Return a session and its measures. The rows of text are in that number of files."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    sizes = (("single", 1), ("many", 100), ("packs", 0))
    urls = {name: stack.enter_context(stand_in(rows, size)) for name, size in sizes}
    spark = open_session("benchmark")
    stack.callback(spark.stop)
    spark.dataSource.register(Floor)
    return spark, measures(spark, directory, rows, urls, files)


def benchmark_cpu(rows: int, repeats: int) -> str:
    with contextlib.ExitStack() as stack:
        spark, taken = started(stack, rows)
        jvm = spark.sparkContext._gateway.proc.pid  # noqa: SLF001 - PySpark does not say otherwise
        best = best_of(repeats, jvm, taken)
        _, little = started(stack, FEW)
        few = best_of(repeats, jvm, little)
    counts = {name: count for name, (count, _) in taken.items()}
    measured = {"rows": counts, "cpu_seconds": best, "cpu_seconds_of_few_rows": few}
    (RESULTS / "spark.json").write_text(json.dumps(measured, indent=1) + "\n")
    return report(counts, best, few, judged=rows > QUICK)


def print_times(rows: int, repeats: int) -> None:
    """Print the duration of each read with the cores of this session, as JSON in the last line."""
    with contextlib.ExitStack() as stack:
        _, taken = started(stack, rows, files=8)
        times: dict[str, float] = {}
        for number in range(repeats + 1):
            for name, (_, act) in taken.items():
                if name in TARGETS or name == "Spark's text":
                    begun = time.perf_counter()
                    act()
                    took = time.perf_counter() - begun
                    times[name] = min(took, times.get(name, took)) if number else took
    print(json.dumps(times), flush=True)


def benchmark_cores(rows: int, repeats: int) -> str:
    """Run each number of cores in its own process, because a JVM keeps the master of its first session."""
    command = [sys.executable, "-m", "benchmarks.spark", "--times", f"--rows={rows}", f"--repeats={repeats}"]
    one, two = (
        json.loads(subprocess.check_output(command, env=os.environ | {"MASTER": master}).splitlines()[-1])
        for master in ("local[1]", "local[2]")
    )
    lines = table_head("local[1], s", "local[2], s", "times as fast", "to reach")
    for name, seconds in one.items():
        faster = seconds / two[name]
        verdict = "" if name not in TARGETS else f"{CORES_TARGET} {'✓' if faster >= CORES_TARGET else '✗'}"
        lines.append(f"| {name} | {seconds:.2f} | {two[name]:.2f} | {faster:.2f} | {verdict} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} rows, once")
    parser.add_argument("--cores", action="store_true", help="compare local[1] and local[2] by the clock")
    parser.add_argument("--times", action="store_true", help="one side of that, with the cores of MASTER")
    given = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    os.environ.setdefault("MASTER", "local[1]")
    rows, repeats = (QUICK, 1) if given.quick else (given.rows // 100 * 100, given.repeats)
    if given.times:
        print_times(rows, repeats)
        return 0
    RESULTS.mkdir(exist_ok=True)
    name = "spark-cores" if given.cores else "spark"
    text = (benchmark_cores if given.cores else benchmark_cpu)(rows, repeats)
    print(f"\n{text}")
    (RESULTS / f"{name}.md").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks.spark`: rows per CPU-second of the data source, beside Spark's own, in one run.

CPU is that of the driver's JVM and of every Python worker under it; servers are other processes and are not
counted. A row is 226 bytes of JSON. Each measure is taken several times, in turn, and its best counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.spark_standin import PAGE_ROWS, ROW_BYTES, row
from tidemark.protocol.offset import render_offset
from tidemark.spark.job import open_session
from tidemark.spark.options.connection import ConnectionOptions
from tidemark.spark.options.read import DEFAULT_COLUMNS, parse_read_options, render_schema
from tidemark.spark.readers.columns import BATCH_ROWS, make_batch
from tidemark.spark.snapshots.fold_streams import SnapshotPlan, snapshot_streams

RESULTS = Path(__file__).with_name("results")
TICKS = os.sysconf("SC_CLK_TCK")
#: As a share of what Spark's text source reads in the same run: a busy machine moves it less than the rows.
TARGETS = {
    "dynamodb, 1 message an item": 0.10,
    "dynamodb, 100 messages an item": 0.15,
    "dynamodb, packs": 0.30,
    "http": 0.27,
    "fold": 0.25,
    "staged write": 0.20,
}


def cpu_seconds(root: int) -> float:
    """Of a process and all under it, those that have ended included."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
                used[int(entry.name)] = sum(map(int, fields[11:15])) / TICKS
    total, waiting = 0.0, [root]
    while waiting:
        pid = waiting.pop()
        total += used.get(pid, 0.0)
        waiting += children.get(pid, [])
    return total


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
    """Every column of every row is made, and thrown away."""
    frame.write.format("noop").mode("overwrite").save()


class ReadyMade(DataSource):
    """Hands Spark the same batch of Arrow again and again. Nothing is read, so this is what Spark's own way
    from a Python data source into the JVM costs, and no reader of ours can be faster."""

    @classmethod
    def name(cls) -> str:
        return "ready-made"

    def schema(self) -> str:
        return render_schema()

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        return ReadyMadeReader(int(self.options["rows"]))


class ReadyMadeReader(DataSourceReader):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002 - both are the same
        names = {"bucket": "v1", "stream": "bench", "content_type": "application/json", "incarnation": "i"}
        offsets = [render_offset(number * ROW_BYTES) for number in range(BATCH_ROWS)]
        arrays = {
            "value": pa.array([row(number) for number in range(BATCH_ROWS)], pa.binary()),
            "offset": pa.array(offsets),
            "end_offset": pa.array(offsets),
        }
        constants = names | {"position": 0, "timestamp": datetime.now(UTC)}
        batch = make_batch(DEFAULT_COLUMNS, BATCH_ROWS, constants, arrays)
        for _ in range(self._rows // 2 // BATCH_ROWS):
            yield batch


def table(url: str) -> dict[str, str]:
    return {"transport": "dynamodb", "table": "t", "dynamodbEndpoint": url, "region": "us-east-1"}


def measures(
    spark: Any, directory: Path, rows: int, urls: dict[str, str]
) -> dict[str, tuple[int, Callable[[], None]]]:
    """By name: how many rows, and what to do with them."""
    lines = directory / "lines"
    spark.range(rows, numPartitions=2).rdd.map(lambda each: row(each.id).decode()).saveAsTextFile(str(lines))
    schema = "key STRING, n BIGINT, at STRING, f DOUBLE, text STRING"
    source = spark.read.format("tidemark")
    whole_pages = rows // PAGE_ROWS * PAGE_ROWS
    plan = SnapshotPlan(
        connection=parse_read_options(table(urls["many"]) | {"subscribe": "-"}, streaming=False).connection,
        publish_to=ConnectionOptions(),
        fold="last-by-key",
        key="key",
        skip_bad=False,
        dry_run=True,
    )
    sink = {"url": urls["many"], "stream": "bench", "stagingDir": str(directory / "staging")}
    return {
        "Spark's text": (rows, lambda: drain(spark.read.text(str(lines)))),
        "Spark's json": (rows, lambda: drain(spark.read.schema(schema).json(str(lines)))),
        "Python source of ready-made batches": (
            rows // (2 * BATCH_ROWS) * 2 * BATCH_ROWS,
            lambda: drain(spark.read.format("ready-made").option("rows", rows).load()),
        ),
        "dynamodb, 1 message an item": (
            rows,
            lambda: drain(source.options(**table(urls["single"]), subscribe="bench").load()),
        ),
        "dynamodb, 100 messages an item": (
            rows,
            lambda: drain(
                spark.read.format("tidemark").options(**table(urls["many"]), subscribe="bench").load()
            ),
        ),
        "dynamodb, packs": (
            rows,
            lambda: drain(
                spark.read.format("tidemark")
                .options(**table(urls["packs"]), s3Endpoint=urls["packs"], blobBucket="b", subscribe="bench")
                .load()
            ),
        ),
        "http": (
            2 * whole_pages,
            lambda: drain(spark.read.format("tidemark").options(url=urls["many"], subscribe="a,b").load()),
        ),
        "fold": (4 * rows, lambda: drain(snapshot_streams(spark, plan, [f"s{n}" for n in range(4)], 2))),
        "staged write": (
            rows,
            lambda: (
                spark.read.text(str(lines)).write.format("tidemark").mode("append").options(**sink).save()
            ),
        ),
    }


def measure(jvm: int, act: Callable[[], None]) -> float:
    before = cpu_seconds(jvm)
    act()
    return cpu_seconds(jvm) - before


def report(best: dict[str, tuple[int, float]]) -> str:
    text_rate = best["Spark's text"][0] / best["Spark's text"][1]
    lines = ["| | rows per CPU-second | beside Spark's text | to reach |", "| --- | ---: | ---: | ---: |"]
    for name, (rows, seconds) in best.items():
        rate = rows / seconds
        target = TARGETS.get(name)
        share = rate / text_rate
        verdict = "" if target is None else f"{target:.2f} {'✓' if share >= target else '✗'}"
        lines.append(f"| {name} | {rate:,.0f} | {share:.2f} | {verdict} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "MASTER": "local[1]"}
    rows = given.rows // 100 * 100
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = {
            name: stack.enter_context(stand_in(rows, size))
            for name, size in (("single", 1), ("many", 100), ("packs", 0))
        }
        spark = open_session("benchmark")
        spark.dataSource.register(ReadyMade)
        jvm = spark.sparkContext._gateway.proc.pid  # noqa: SLF001 - PySpark does not say otherwise
        taken = measures(spark, directory, rows, urls)
        best: dict[str, tuple[int, float]] = {}
        for repeat in range(given.repeats + 1):
            for name, (count, act) in taken.items():
                seconds = measure(jvm, act)
                # The first round warms up: workers, the JVM's compiler, the stand-in's pages.
                if repeat and seconds < best.get(name, (0, float("inf")))[1]:
                    best[name] = (count, seconds)
                print(f"round {repeat}, {name}: {count / seconds:,.0f} rows per CPU-second", flush=True)
        spark.stop()
    text = report(best)
    print(f"\n{text}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "spark.md").write_text(text + "\n")
    (RESULTS / "spark.json").write_text(json.dumps(best, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A driver with three writes at once, each of which comes to a standstill elsewhere; then it is killed.

    python hadoop_driver.py MARKS OPTIONS HADOOP

OPTIONS has the options of each: `stage` stands still while a task stages, `settle` once its manifest is
there, and `publish` where the tests' server does not let it go on. MARKS is a directory where a file says so,
and HADOOP is configuration of Hadoop's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tidemark.spark.job import open_session
from tidemark.spark.staging.manifest import Manifest, StagedBatches
from tidemark.spark.writer.frames import write_frame


def main(marks: Path, given: dict[str, dict[str, str]], hadoop: dict[str, str]) -> None:
    spark = open_session("killed")
    for name, value in hadoop.items():
        spark.sparkContext._jsc.hadoopConfiguration().set(name, value)

    def stand_still(point: str) -> None:
        (marks / point).touch()
        time.sleep(3600)

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().partitionId() == 1:
            stand_still("stage")

    settle = StagedBatches.settle

    def settle_and_stop(batches: StagedBatches, *arguments: Any, **more: Any) -> Manifest:
        settled = settle(batches, *arguments, **more)
        if batches._root.endswith("settle"):
            stand_still("settle")
        return settled

    StagedBatches.settle = settle_and_stop  # type: ignore[method-assign,assignment]
    frame = spark.range(0, 900, 1, 2).selectExpr("to_json(struct(id)) AS value")
    frames = {"stage": frame.mapInArrow(slow, "value STRING"), "settle": frame, "publish": frame}
    with ThreadPoolExecutor(len(given)) as pool:
        for done in [pool.submit(write_frame, frames[point], given[point]) for point in given]:
            done.result()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]))

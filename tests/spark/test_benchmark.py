"""What `make benchspark` measures of this package runs to its end, on its stand-in for the servers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.spark import FEW, TARGETS, measures, stand_in
from benchmarks.spark_floors import Floor


def test_each_measure_of_the_benchmark_runs(spark: Any, tmp_path: Path) -> None:
    spark.dataSource.register(Floor)
    with ExitStack() as stack:
        sizes = {"single": 1, "many": 100, "packs": 0}
        urls = {name: stack.enter_context(stand_in(FEW, size)) for name, size in sizes.items()}
        taken = measures(spark, tmp_path, FEW, urls, 2)
        for name in TARGETS:
            _, act = taken[name]
            act()

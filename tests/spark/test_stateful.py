"""`transformWithStateInPandas` over streams. It imports protobuf, which PySpark does not ask for:
requirements/spark*.in name the versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.spark.streams import Streams, started

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def counter() -> StatefulProcessor:
    """Counts each stream's messages over all batches. Made here, so that the workers need not import this."""
    import pandas as pd

    class Counter(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._count = handle.getValueState("count", "messages BIGINT")

        def handleInputRows(self, key: Any, rows: Iterator[Any], _timers: Any) -> Iterator[Any]:  # noqa: N802
            before = self._count.get()
            messages = (before[0] if before else 0) + sum(len(frame) for frame in rows)
            self._count.update((messages,))
            yield pd.DataFrame({"stream": [key[0]], "messages": [messages]})

        def close(self) -> None:
            pass

    return Counter()


def test_state_is_kept_for_each_stream_over_batches_and_restarts(
    spark: Any, streams: Streams, tmp_path: Path
) -> None:
    streams.fill(b"1", b"2", b"3", suffix="-a")
    streams.fill(b"1", suffix="-b")
    counted: list[dict[str, int]] = []

    def keep(frame: Any, _batch: int) -> None:
        rows = frame.collect()
        if rows:
            counted.append({row["stream"][-1]: row["messages"] for row in rows})

    def run() -> None:
        frame = spark.readStream.format("tidemark").options(
            **streams.by_table(subscribePattern=f"{streams.name}-.")
        )
        counts = (
            frame.load()
            .groupBy("stream")
            .transformWithStateInPandas(
                counter(), "stream STRING, messages BIGINT", outputMode="Update", timeMode="None"
            )
        )
        writing = counts.writeStream.foreachBatch(keep).outputMode("update").trigger(availableNow=True)
        query = writing.option("checkpointLocation", str(tmp_path)).start()
        assert query.awaitTermination(900)

    provider = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(provider)
    spark.conf.set(provider, ROCKSDB)
    try:
        started(run)
        streams.append(b"4", suffix="-a")
        started(run)
    finally:
        spark.conf.set(provider, before)
    assert counted == [{"a": 3, "b": 1}, {"a": 4}]

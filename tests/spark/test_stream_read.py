"""The streaming read: every message once, across batches, limits, restarts and re-creations."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.streams import filled, key, started, table_options
from tests.support import World
from tidemark.service.delete import delete
from tidemark.spark.source import spark_version

Follow = Callable[..., list[bytes]]
ADMISSION = spark_version() >= (4, 2)


class Query:
    """A streaming query into an append-only file sink, run until it has read what is there."""

    def __init__(self, spark: Any, world: World, directory: Path) -> None:
        self._spark = spark
        self._world = world
        self._checkpoint = directory / "checkpoint"
        self._out = directory / "out"
        self.batches: list[int] = []

    def run(self, **given: Any) -> None:
        started(lambda: self._run(**given))

    def _run(
        self,
        *,
        trigger: dict[str, Any] | None = None,
        fail: int | None = None,
        meanwhile: Callable[[], None] | None = None,
        **options: str,
    ) -> None:
        source = self._spark.readStream.format("tidemark").options(**table_options(self._world), **options)
        self.batches = []

        def write(frame: Any, batch_id: int) -> None:
            frame = frame.select("stream", "offset", "value").persist()
            self.batches.append(frame.count())
            if fail is not None and len(self.batches) > fail:
                raise RuntimeError("injected")
            frame.write.mode("overwrite").parquet(str(self._out / str(batch_id)))
            frame.unpersist()

        query = (
            source.load()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        try:
            if trigger:
                query.processAllAvailable()
                if meanwhile is not None:
                    meanwhile()
            else:
                assert query.awaitTermination(900)
        finally:
            query.stop()

    def rows(self) -> list[tuple[str, str, bytes]]:
        found = self._spark.read.parquet(str(self._out / "*")).collect()
        return sorted((row["stream"], row["offset"], bytes(row["value"])) for row in found)

    def values(self) -> list[bytes]:
        return [value for _, _, value in self.rows()]


@pytest.fixture
def query(spark: Any, world: World, tmp_path: Path) -> Query:
    return Query(spark, world, tmp_path)


def numbered(start: int, end: int) -> list[bytes]:
    return [f"{index:04}".encode() for index in range(start, end)]


def test_a_restart_from_the_checkpoint_goes_on_exactly(query: Query, world: World, name: str) -> None:
    filled(world, name, *numbered(0, 5))
    query.run(subscribe=name)
    for body in numbered(5, 9):
        world.process().append(key(name), body)
    query.run(subscribe=name)
    query.run(subscribe=name)
    assert query.values() == numbered(0, 9)


def test_a_batch_that_failed_is_read_again_as_it_was(query: Query, world: World, name: str) -> None:
    """What came meanwhile belongs to the next one."""
    filled(world, name, *numbered(0, 5))
    with pytest.raises(Exception, match="injected"):
        query.run(subscribe=name, fail=0)
    for body in numbered(5, 8):
        world.process().append(key(name), body)
    query.run(subscribe=name)
    if ADMISSION:
        assert query.batches == [5, 3]
    else:
        # AvailableNow is a single batch here, and after a failure that is the failed one.
        assert query.batches == [5]
        query.run(subscribe=name)
        assert query.batches == [3]
    assert query.values() == numbered(0, 8)


LIMITED: dict[str, Any] = {"maxOffsetsPerTrigger": "12"} | (
    {} if ADMISSION else {"assumeProcessingTime": "true"}
)


def test_a_limit_cuts_batches_and_loses_nothing(query: Query, world: World, name: str) -> None:
    """Twelve bytes are three messages of four; the restart begins in the middle."""
    filled(world, name, *numbered(0, 10))
    # Before 4.2 a query with a limit needs a trigger that keeps on coming.
    trigger = None if ADMISSION else {"processingTime": "0 seconds"}
    with pytest.raises(Exception, match="injected"):
        query.run(subscribe=name, trigger=trigger, fail=2, **LIMITED)
    assert query.batches == [3, 3, 3]
    query.run(subscribe=name, trigger=trigger, **LIMITED)
    assert query.batches == [3, 1]
    assert query.values() == numbered(0, 10)


def test_available_now_with_a_limit_reads_everything_or_is_refused(
    query: Query, world: World, name: str
) -> None:
    filled(world, name, *numbered(0, 7))
    if not ADMISSION:
        with pytest.raises(Exception, match="AvailableNow it would stop with data unread"):
            query.run(subscribe=name, maxOffsetsPerTrigger="12")
        return
    query.run(subscribe=name, maxOffsetsPerTrigger="12")
    assert query.batches == [3, 3, 1]
    assert query.values() == numbered(0, 7)


def test_the_limit_is_shared_by_how_far_behind_each_stream_is(query: Query, world: World, name: str) -> None:
    filled(world, f"{name}-a", *numbered(0, 9))
    filled(world, f"{name}-b", *numbered(100, 103))
    query.run(
        subscribePattern=f"{name}-.",
        trigger=None if ADMISSION else {"processingTime": "0 seconds"},
        **(LIMITED | {"maxOffsetsPerTrigger": "16"}),
    )
    assert query.batches == [4, 4, 4]
    assert query.values() == numbered(0, 9) + numbered(100, 103)


def test_a_batch_waits_until_enough_has_come_and_has_so_many_messages_at_most(
    query: Query, world: World, name: str
) -> None:
    """The first batch does not wait. AvailableNow does not, either; before 4.2 a source cannot see it."""
    filled(world, name, *numbered(0, 3))
    process = world.process()

    def append_a_little_then_more() -> None:
        process.append(key(name), b"0003")
        time.sleep(2.5)
        assert query.batches == [3]
        for body in numbered(4, 8):
            process.append(key(name), body)
        deadline = time.monotonic() + 600
        while len(query.batches) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)

    limits: dict[str, Any] = {
        "minOffsetsPerTrigger": "12",
        "maxTriggerDelay": "1h",
        "maxMessagesPerTrigger": "3",
    }
    waiting = {"processingTime": "0 seconds"}
    query.run(
        subscribe=name,
        trigger=waiting,
        meanwhile=append_a_little_then_more,
        **(LIMITED | limits | {"maxOffsetsPerTrigger": "100"}),
    )
    assert query.batches[:2] == [3, 3]
    if ADMISSION:
        query.run(subscribe=name, **limits)
        assert query.values() == numbered(0, 8)
    else:
        with pytest.raises(Exception, match=r"maxMessagesPerTrigger, minBytesPerTrigger .* on this version"):
            query.run(subscribe=name, **limits)


def test_latest_reads_only_what_comes(query: Query, world: World, name: str) -> None:
    filled(world, name, *numbered(0, 3))
    query.run(subscribe=name, startingOffsets="latest")
    world.process().append(key(name), b"new")
    query.run(subscribe=name, startingOffsets="latest")
    assert query.values() == [b"new"]


def test_new_streams_of_a_pattern_are_read_from_their_beginning(
    query: Query, world: World, name: str
) -> None:
    filled(world, f"{name}-a", b"a1")
    query.run(subscribePattern=f"{name}-.*")
    filled(world, f"{name}-b", b"b1", b"b2")
    world.process().append(key(f"{name}-a"), b"a2")
    query.run(subscribePattern=f"{name}-.*")
    assert query.values() == [b"a1", b"a2", b"b1", b"b2"]


@pytest.mark.parametrize("bodies", [[b"new stream", b"!"], [b"n"]], ids=["longer", "shorter"])
def test_a_stream_that_was_created_again_is_told_apart(
    query: Query, world: World, name: str, bodies: list[bytes]
) -> None:
    """A longer one would be read from its middle, and a shorter one not at all, by offsets alone."""
    filled(world, name, b"old")
    query.run(subscribe=name)
    delete(world.process().stores, key(name))
    filled(world, name, *bodies)
    with pytest.raises(Exception, match="deleted and created again"):
        query.run(subscribe=name)
    query.run(subscribe=name, failOnDataLoss="false")
    assert query.values() == sorted([b"old", *bodies], key=lambda body: (body == b"!", body))


def test_a_stream_that_is_gone_stops_the_query_or_is_left_out(query: Query, world: World, name: str) -> None:
    filled(world, f"{name}-a", b"a1")
    filled(world, f"{name}-b", b"b1")
    both = f"{name}-a,{name}-b"
    query.run(subscribe=both)
    delete(world.process().stores, key(f"{name}-a"))
    world.process().append(key(f"{name}-b"), b"b2")
    with pytest.raises(Exception, match=f"{name}-a: it does not exist any more"):
        query.run(subscribe=both)
    query.run(subscribe=both, failOnDataLoss="false")
    assert query.values() == [b"a1", b"b1", b"b2"]


def test_a_missing_stream_is_named_at_the_start(query: Query, name: str) -> None:
    with pytest.raises(Exception, match=f"no such stream in v1: {name}"):
        query.run(subscribe=name)

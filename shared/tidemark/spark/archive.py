"""The archive: copies messages that the streams have and the lake's table lacks, batch after batch.

The table's reach (`reach.py`) is the only record of progress. After a kill, run the job again; a table that
was rolled back gets its messages again; if two archives conflict, one plans its batch again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tidemark.spark.lake import LakeTable, reaches_in
from tidemark.spark.lake_files import FilesWritten, write_partitions
from tidemark.spark.options import InvalidOptions
from tidemark.spark.options.read import ReadOptions, parse_read_options
from tidemark.spark.progress import Positions, Progress
from tidemark.spark.queries import load_heads, pack, plan_partitions, positions_of, require_all, within_limit
from tidemark.spark.reach import ArchiveBatch, reach_of, reaches_of, table_ends
from tidemark.spark.readers import connect, port

#: Bytes that a task reads: the approximate size of a file before compression.
FILE_BYTES: Final = 256 * 1024 * 1024
#: Options of the data source that the archive sets.
_OWN: Final = ("columns", "between", "maxBytesPerTrigger")

Heads = Mapping[str, port.Head]
_Pack = tuple[port.StreamPartition, ...]
WritePacks = Callable[[Callable[[_Pack], FilesWritten], Sequence[_Pack]], Iterable[FilesWritten]]
"""Like `map`: the results of a function for each pack, in order, from this process or from Spark's tasks."""


class Archive:
    """A run of the archive and its totals; `lost` has the bytes that could not be archived, by stream, 0 if
    unknown. `given` are options of the data source. Keeps one reader, which needs fewer requests for known
    streams. Raises InvalidOptions."""

    def __init__(
        self,
        given: Mapping[str, str],
        lake: LakeTable,
        batch_bytes: int,
        write_packs: WritePacks,
        report: Callable[[str], None],
    ) -> None:
        self._options = replace(_parse(given), limit_bytes=batch_bytes)
        self._decides_times = "includetimestamps" not in map(str.lower, given)
        self._has_begun = False
        self._reader = connect(self._options.connection)
        self._lake, self._write_packs, self._report = lake, write_packs, report
        self.messages = self.batches = 0
        self.lost = Counter[str]()

    def take_what_came(self) -> None:
        """Archive all messages up to the current tails. Raises DataLoss and InvalidOptions."""
        heads = load_heads(self._options, self._reader)
        self._lake.ensure()
        if not self._has_begun:
            reaches = reaches_in(self._lake.load(), self._options.connection.bucket)
            require_all(self._options, self._reader, heads, {name for name, _ in reaches})
            self._has_begun = True
        self._ask_times(heads)
        while (batch := self._next_batch(heads)) is not None:
            self._take(batch)

    def _ask_times(self, heads: Heads) -> None:
        """Load timestamps over HTTP if the server has them, unless the user has set `includeTimestamps`: the
        table is partitioned by time, and times cannot be added later."""
        if not heads or not self._decides_times:
            return
        self._decides_times = False
        try:
            self._reader.check_times(next(iter(heads.values())))
        except port.NoTimes as fault:
            self._report(f"{fault}: messages are archived without their time")
        else:
            columns = dict.fromkeys([*self._options.columns, "timestamp"])
            self._options = replace(self._options, columns=tuple(columns), include_timestamps=True)

    def _next_batch(self, heads: Heads) -> ArchiveBatch | None:
        """Plan a batch of messages up to `heads` that the table lacks. Returns None if the table has all.
        Raises DataLoss."""
        options, bucket = self._options, self._options.connection.bucket
        table = self._lake.load()
        known = reaches_of(table)
        before, gone = table_ends(bucket, known, heads, options.subscribes)
        there = before.keys() & heads.keys()
        passed = (port.is_past(before[name].offset, heads[name].tail.offset) for name in there)
        if gone or any(passed):
            # Another archive may have added messages after these heads were loaded.
            heads = load_heads(options, self._reader)
            before, gone = table_ends(bucket, known, heads, options.subscribes)
        missing = sorted({name for _, name, _ in gone} - heads.keys())
        if missing and options.fail_on_data_loss:
            raise port.DataLoss(", ".join(missing[:5]), "it does not exist any more, and was never closed")
        new = {name: head for name, head in heads.items() if name not in before}
        start = before | positions_of("starting", options, self._reader, new)
        end: Positions = {
            name: head.tail
            for name, head in heads.items()
            if not start[name].is_at(head.tail) or (head.tail.closed and not start[name].closed)
        }
        if end:
            end = within_limit(options, self._reader, Progress(start), Progress(end)).positions
        # After a commit of another engine an empty batch follows, so that the tag keeps no deleted rows.
        is_ours = table.current_snapshot() is None or reach_of(table.current_snapshot())
        return ArchiveBatch(bucket, start, end, gone, known) if end or gone or not is_ours else None

    def _take(self, batch: ArchiveBatch) -> None:
        planned = plan_partitions(self._options, self._reader, batch.start, batch.end)
        packs = pack(planned, self._options.bytes_per_partition)
        place = self._lake.place()
        try:
            written = list(self._write_packs(partial(write_partitions, self._options, place), packs))
        except BaseException:
            place.remove()
            raise
        if not self._lake.add(place, written, batch):
            self._report("another archive committed first: its messages are not archived again")
            return
        messages = sum(file.footer.num_rows for each in written for file in each.files)
        if messages:
            self.messages += messages
            self.batches += 1
            self._report(f"batch {self.batches}: {messages} messages")
        # With failOnDataLoss the read has already failed at the first loss.
        if not self._options.fail_on_data_loss:
            self._report_losses(batch, written)

    def _report_losses(self, batch: ArchiveBatch, written: Sequence[FilesWritten]) -> None:
        lost = Counter[str]()
        for each in written:
            lost.update(each.lost)
        starts = ((name, batch.start[name], end) for name, end in batch.end.items())
        again = {name for name, start, end in starts if start.is_of_another(end) and not start.closed}
        for name in sorted(lost.keys() | again):
            size = f"{lost[name]} bytes" if lost[name] else "messages"
            what = "messages unread when it was deleted and created again" if name in again else size
            self._report(f"{name}: {what} could not be archived")
            self.lost[name] += lost[name]


def _parse(given: Mapping[str, str]) -> ReadOptions:
    """Raises InvalidOptions."""
    named = {name.lower() for name in given}
    faults = [f"{name} is not for archives, which have their own" for name in _OWN if name.lower() in named]
    wanted = {"bytesPerPartition": str(FILE_BYTES), **given}
    options = parse_read_options(wanted, streaming=True, faults=faults)
    if options.starting == "latest":
        raise InvalidOptions(["startingOffsets=latest is not for archives: give startingTimestamp"])
    return replace(options, columns=(*options.columns, "key"))

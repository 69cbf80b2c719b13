"""A streaming query's progress: its checkpoint's position in each stream, and the end of its next batch.

Spark keeps this with every batch, so it must not grow with every stream that there ever was. A stream has
ended when it does not exist any more, or when it was closed and is read up to there. It stays in the
checkpoint for a while (`forgetEndedSeconds`), and then it is forgotten.

A name that comes back after a deletion is another stream. But a closed stream may exist for years, and each
look at the bucket finds it again. So the checkpoint has one number for all closed streams that were read:

    Every closed stream that was created up to this time, and is not named here, has been read.

This holds because a batch names each stream that the look before it has found, unless it was forgotten, and
because a stream is found at the latest five minutes after the time that its creation is dated (clocks differ,
and a creation may take a while). The number is never nearer to the look than that. A stream that is created
again under a forgotten name is dated later than the number, so it is a new one.

The number is of one bucket and one pattern: under another pattern, the streams that the first one did not
take in are new. For names that were given one by one nothing is forgotten; they are not many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidemark.spark.options import InvalidOptions
from tidemark.spark.options.read import ReadOptions
from tidemark.spark.readers.port import DataLoss, Head, Position, is_past

Positions = Mapping[str, Position]

Offset = dict[str, Any]
"""The offset that Spark stores for each batch: `{stream: [offset, incarnation, content type, ended since,
closed]}`, and under the empty name, which no stream has, `{"bucket/pattern": milliseconds since 1970}`. A
version that does not know of that object stops with an error: it would read again what was read."""

#: The name that no stream has.
BESIDE: Final = ""
#: How long after its date a stream's creation may be seen for the first time.
SETTLED_SECONDS: Final = 300


@dataclass(frozen=True)
class Progress:
    """`forgotten` is by bucket and pattern: up to when those closed streams were created that have been read
    and are not named any more, in milliseconds since 1970."""

    positions: Positions
    forgotten: Mapping[str, int] = field(default_factory=dict)

    def has_forgotten(self, bucket: str, head: Head) -> bool:
        """Whether it is one of those streams."""
        if head.tail.closed and head.created_ms:
            for asked, until_ms in self.forgotten.items():
                if head.created_ms <= until_ms:
                    place, _, pattern = asked.partition("/")
                    if place == bucket and re.fullmatch(pattern, head.name):
                        return True
        return False

    def taken(self, bucket: str, head: Head) -> Position | None:
        """How far the stream was read; None if nothing of it was."""
        return head.tail if self.has_forgotten(bucket, head) else self.positions.get(head.name)


@dataclass(frozen=True)
class Look:
    """The subscribed streams that exist, and when the first of them was asked for, in ms since 1970 by the
    server's clock; 0 if that is not known, and then nothing is forgotten."""

    heads: Mapping[str, Head]
    at_ms: int


def encode_offset(progress: Progress) -> Offset:
    named = {name: position.encode() for name, position in sorted(progress.positions.items())}
    return ({BESIDE: dict(progress.forgotten)} if progress.forgotten else {}) | named


def decode_offset(offset: Mapping[str, Any]) -> Progress:
    """Raises InvalidOptions for a checkpoint that keeps its streams elsewhere."""
    beside = offset.get(BESIDE, {})
    if isinstance(beside, list):
        raise InvalidOptions(["the checkpoint was written with offsetsDir, which is gone: begin a new one"])
    named = {name: Position.decode(value) for name, value in offset.items() if name != BESIDE}
    return Progress(named, beside)


def everything_until(options: ReadOptions, start: Progress, look: Look) -> Progress:
    """The end of a batch that begins at `start` and takes all that was found. Returns `start` if no stream
    has new messages or was closed: no batch is made just to forget streams. Raises DataLoss, and
    InvalidOptions if the checkpoint has streams that the options do not name."""
    now, bucket = look.at_ms // 1000, options.connection.bucket
    forgotten, forgotten_ms = dict(start.forgotten), 0
    if options.pattern is not None:
        asked = f"{bucket}/{options.pattern}"
        settled_ms = look.at_ms - 1000 * max(SETTLED_SECONDS, options.forget_seconds)
        forgotten[asked] = forgotten_ms = max(settled_ms, forgotten.get(asked, 0))
    ends, has_news = _those_gone(options, start, look), False
    for name, head in look.heads.items():
        before, end = start.positions.get(name), head.tail
        if before is None and start.has_forgotten(bucket, head):
            continue
        is_read = before is not None and before.is_at(end)
        # That it was closed is news too: else its deletion would be taken for lost data.
        has_news = has_news or not is_read or (before is not None and end.closed and not before.closed)
        if end.closed:
            since = before.ended_since if before is not None and is_read else 0
            is_over = since and now - since >= options.forget_seconds
            if is_over and 0 < head.created_ms <= forgotten_ms:
                continue
            end = replace(end, ended_since=since or now)
        ends[name] = end
    return Progress(ends, forgotten) if has_news else start


def _those_gone(options: ReadOptions, start: Progress, look: Look) -> dict[str, Position]:
    """Streams that do not exist any more stay where they were last read, and are forgotten after a while."""
    gone = {name: position for name, position in start.positions.items() if name not in look.heads}
    lost = sorted(name for name, position in gone.items() if not position.closed)
    if lost and options.fail_on_data_loss:
        strangers = [name for name in lost if not options.subscribes(name)]
        if strangers:
            what = f"the checkpoint has streams that are not subscribed any more: {_few(strangers)}"
            raise InvalidOptions(
                [f"{what}; begin a new checkpoint, or set failOnDataLoss to false to leave them out"]
            )
        raise DataLoss(_few(lost), "it does not exist any more")
    now = look.at_ms // 1000
    kept = {name: replace(end, ended_since=end.ended_since or now) for name, end in gone.items()}
    return {name: end for name, end in kept.items() if now - end.ended_since < options.forget_seconds}


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def not_before(start: Progress, look: Look) -> Look:
    """An older look, for a query that takes what was there when it began, and nothing newer. A batch may
    begin beyond that, where an earlier run had already planned to read."""
    heads = dict(look.heads)
    for name, head in look.heads.items():
        before = start.positions.get(name, head.tail)
        if before.incarnation == head.tail.incarnation and is_past(before.offset, head.tail.offset):
            heads[name] = replace(head, tail=before)
    return replace(look, heads=heads)


def last_planned(spark: Any, checkpoint: str) -> int:
    """The newest batch that a query's checkpoint knows of; -1 before the first."""
    return max(batches_in(spark, f"{checkpoint}/offsets"), default=-1)


def batches_in(spark: Any, directory: str) -> set[int]:
    """Of a checkpoint's `offsets` or `commits`, by Hadoop's file systems: it may be wherever Spark can keep
    one."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - PySpark offers no other way to list a directory
    path = jvm.org.apache.hadoop.fs.Path(directory)
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001
    if not files.exists(path):
        return set()
    names = [status.getPath().getName() for status in files.listStatus(path)]
    return {int(name) for name in names if name.isdigit()}

"""A streaming query's progress: its checkpoint's position in each stream, and the end of its next batch.

Spark stores the progress with every batch, so it must not grow with the number of streams that ever existed.
A stream has ended when it is deleted or expired, or when it is closed and read to its end. An ended stream
stays in the checkpoint for `forgetEndedSeconds` and is then removed ("forgotten").

A deleted stream does not come back: a new stream under its name is another stream. A closed stream, however,
may exist for years, and every listing of the bucket finds it again. The checkpoint therefore has one time,
the high-water mark of the forgotten streams:

    Every closed stream that was created up to this time, and is not named here, has been read.

Proof: a batch names every stream that the listing before it found, except the forgotten streams. A listing
finds a stream at most five minutes after its creation date (clocks differ, and a creation takes time), and
the mark is always at least five minutes older than the listing. A stream that is created again under a
forgotten name has a creation date later than the mark, so it is read as a new stream.

A mark holds for one bucket and one pattern, because another pattern may include further streams. Streams
that the user names one by one are few and are never forgotten.
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
version that does not know this object stops with an error, because it would read old streams again."""

#: The key of the high-water marks in an offset: a name that no stream has.
BESIDE: Final = ""
#: Most seconds between a stream's creation date and the first listing that finds the stream.
SETTLED_SECONDS: Final = 300


@dataclass(frozen=True)
class Progress:
    """Positions by stream, and in `forgotten` the high-water mark of each `bucket/pattern`: closed streams
    created up to this time, and not named here, have been read. In milliseconds since 1970."""

    positions: Positions
    forgotten: Mapping[str, int] = field(default_factory=dict)

    def has_forgotten(self, bucket: str, head: Head) -> bool:
        """Whether the stream is closed, was read and is no longer named here."""
        if head.tail.closed and head.created_ms:
            for asked, until_ms in self.forgotten.items():
                if head.created_ms <= until_ms:
                    place, _, pattern = asked.partition("/")
                    if place == bucket and re.fullmatch(pattern, head.name):
                        return True
        return False

    def taken(self, bucket: str, head: Head) -> Position | None:
        """Return the position up to which the stream was read; None if it was never read."""
        return head.tail if self.has_forgotten(bucket, head) else self.positions.get(head.name)


@dataclass(frozen=True)
class Look:
    """The subscribed streams that exist, and the time of the first request for them, in ms since 1970 by the
    server's clock. With `at_ms` 0 the time is unknown, and no stream is forgotten."""

    heads: Mapping[str, Head]
    at_ms: int


def encode_offset(progress: Progress) -> Offset:
    named = {name: position.encode() for name, position in sorted(progress.positions.items())}
    return ({BESIDE: dict(progress.forgotten)} if progress.forgotten else {}) | named


def decode_offset(offset: Mapping[str, Any]) -> Progress:
    named = {name: Position.decode(value) for name, value in offset.items() if name != BESIDE}
    return Progress(named, offset.get(BESIDE, {}))


def everything_until(options: ReadOptions, start: Progress, look: Look) -> Progress:
    """Return the end of a batch that begins at `start` and has all messages up to the tails in `look`.
    Returns `start` if no stream has new messages or was closed: forgetting streams alone makes no batch.
    Raises DataLoss, and InvalidOptions if the checkpoint has streams that the options do not name."""
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
        # A closure is news too: otherwise a later deletion of the stream would count as data loss.
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
    """Return the last positions of streams that no longer exist, unless they are to be forgotten."""
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


def crossed(starts: Positions, ends: Positions) -> list[str]:
    """Return the streams whose start lies past their end, in one incarnation."""
    both = sorted(starts.keys() & ends.keys())
    alike = [name for name in both if starts[name].incarnation == ends[name].incarnation]
    return [name for name in alike if is_past(starts[name].offset, ends[name].offset)]


def not_before(start: Progress, look: Look) -> Look:
    """Return the query's target `look`, with tails moved forward to `start` where an earlier run planned to
    read beyond it. Used by a query that reads only messages that existed when it began."""
    heads, tails = dict(look.heads), {name: head.tail for name, head in look.heads.items()}
    for name in crossed(start.positions, tails):
        heads[name] = replace(heads[name], tail=start.positions[name])
    return replace(look, heads=heads)


def hadoop_path(spark: Any, place: str) -> tuple[Any, Any]:
    """Return Hadoop's path and its file system: a checkpoint may be on any of these."""
    context = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)  # noqa: SLF001 - PySpark offers no other way
    return path, path.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001


def batches_in(spark: Any, directory: str) -> set[int]:
    """Return the batches in a checkpoint's directory `offsets` or `commits`."""
    path, files = hadoop_path(spark, directory)
    if not files.exists(path):
        return set()
    names = [status.getPath().getName() for status in files.listStatus(path)]
    return {int(name) for name in names if name.isdigit()}

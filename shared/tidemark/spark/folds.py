"""Folds reduce a stream's messages to the snapshot that replaces them (extensions, §2).

A fold is three things: an initial state, the change that a message makes to it, and the encoding of the
state, because the next snapshot begins from the last one. A fold of one's own is a class with the methods of
`Fold`, named as `module:Class`. One that can take many messages at once is a `BulkFold`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from operator import getitem
from typing import Annotated, Any, Final, Protocol, runtime_checkable

import msgspec
import orjson
import pyarrow as pa

from tidemark.protocol.message_key import find_member, make_decoder, operation_of, split_pointer
from tidemark.spark.archives import forget_archives
from tidemark.spark.options import ConnectionOptions
from tidemark.spark.progress import Progress, taken_by_all
from tidemark.spark.readers import connect
from tidemark.spark.readers.columns import arrow_schema
from tidemark.spark.readers.port import DataLoss, Head, MissingStream, Position, Reader, is_past
from tidemark.spark.snapshots import SnapshotRefused, SnapshotStore, connect_snapshots

JSON: Final = "application/json"

#: The parser that reads snapshots does not take larger integers.
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class BadMessage(ValueError):
    """A message that the fold cannot take; the message says why."""


class Fold(Protocol):
    #: The content type of the snapshot.
    content_type: str

    def load(self, snapshot: bytes | None) -> Any:
        """The state that a snapshot holds; None is the state of an empty stream."""

    def apply(self, state: Any, message: bytes) -> Any:
        """The state after the message; `state` may be changed. Raises BadMessage."""

    def dump(self, state: Any) -> bytes: ...


@runtime_checkable
class BulkFold(Fold, Protocol):
    """A fold with a faster way for many messages."""

    def apply_many(self, state: Any, messages: Sequence[bytes]) -> Any:
        """The state after all of the messages, as `apply` makes it one by one. Raises BadMessage before it
        changes the state: the messages then come one by one, and the bad one is found."""


class UnknownFold(ValueError):
    """No fold has that name."""


class LastByKey:
    """The last message of each key, as an array in the order of the keys' first appearance.

    Messages are JSON objects; `key` is the member that tells them apart, or a JSON pointer to it. One whose
    member `deleted` is true, or that the State Protocol calls a delete, removes its key.
    """

    content_type = JSON

    def __init__(self, key: str = "key") -> None:
        self._key = key
        self._path = split_pointer(key) if key.startswith("/") else [key]
        try:
            # Only these members of each message become Python objects.
            self._decode, self._find_key = make_decoder(self._path, str | _Int64, "deleted")
        except ValueError as fault:  # A name with quotes, or `deleted` itself.
            self._decode = partial(_refuse, str(fault))

    def load(self, snapshot: bytes | None) -> dict[Any, bytes]:
        if snapshot is None:
            return {}
        return {reduce(getitem, self._path, value): orjson.dumps(value) for value in orjson.loads(snapshot)}

    def apply(self, state: dict[Any, bytes], message: bytes) -> dict[Any, bytes]:
        value = parse(message)
        try:
            key = reduce(getitem, self._path, value)
            hash(key)
        except (TypeError, KeyError):
            raise BadMessage(f"it is no JSON object with a plain member {self._key!r}") from None
        if value.get("deleted") is True or find_member(value, "headers", "operation") == "delete":
            state.pop(key, None)
        else:
            state[key] = message
        return state

    def apply_many(self, state: dict[Any, bytes], messages: Sequence[bytes]) -> dict[Any, bytes]:
        """Parses no more of them than the two members. Refuses keys that are neither texts nor integers,
        which `apply` may accept, and accepts messages that `apply` refuses if another message of the same key
        follows."""
        try:
            changes = list(map(self._decode, messages))
            keys = list(map(self._find_key, changes))
            last = dict(zip(keys, messages, strict=True))
            for message in last.values():
                orjson.loads(message)  # The next snapshot begins with it.
        except (msgspec.MsgspecError, ValueError, RecursionError) as fault:
            raise BadMessage(str(fault)) from None
        if not any(change.deleted or change.headers for change in changes):
            state.update(last)
            return state
        for key, change, message in zip(keys, changes, messages, strict=True):
            if change.deleted is True or operation_of(change) == "delete":
                state.pop(key, None)
            else:
                state[key] = message
        return state

    def dump(self, state: dict[Any, bytes]) -> bytes:
        return b"[" + b",".join(state.values()) + b"]"


def _refuse(why: str, _message: bytes) -> Any:
    raise BadMessage(why)


class MergePatch:
    """Every message is a JSON merge patch (RFC 7386) to one document."""

    content_type = JSON

    def load(self, snapshot: bytes | None) -> Any:
        return None if snapshot is None else orjson.loads(snapshot)

    def apply(self, state: Any, message: bytes) -> Any:
        return merge(state, parse(message))

    def dump(self, state: Any) -> bytes:
        return orjson.dumps(state)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2: MergePatch(Target, Patch)."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = merge(target.get(name), value)
    return target


def parse(message: bytes) -> Any:
    try:
        return orjson.loads(message)
    except orjson.JSONDecodeError as fault:
        raise BadMessage(f"it is not JSON: {fault}") from None


def find_fold(name: str, key: str) -> Fold:
    """`last-by-key`, `merge-patch` or `module:Class`. Raises UnknownFold."""
    if name == "last-by-key":
        return LastByKey(key)
    if name == "merge-patch":
        return MergePatch()
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UnknownFold(f"fold must be last-by-key, merge-patch or module:Class, got {name!r}")
    try:
        fold = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError) as fault:
        raise UnknownFold(f"fold {name!r} cannot be loaded: {fault}") from None
    missing = [each for each in ("content_type", "load", "apply", "dump") if not hasattr(fold, each)]
    if missing:
        raise UnknownFold(f"fold {name!r} has no {', '.join(missing)}")
    made: Fold = fold
    return made


def fold_messages(fold: Fold, state: Any, messages: Iterable[bytes]) -> Any:
    for message in messages:
        state = fold.apply(state, message)
    return state


RESULT_SCHEMA: Final = (
    "stream STRING, outcome STRING, offset STRING, messages BIGINT, skipped BIGINT, skipped_first STRING, "
    "detail STRING"
)
_RESULT: Final = arrow_schema(RESULT_SCHEMA)
_PARTITION_BYTES: Final = 1 << 40

#: The outcome for a stream.
PUBLISHED: Final = "published"
FOLDED: Final = "folded"
UNCHANGED: Final = "unchanged"
CONFLICT: Final = "conflict"
NOT_TAKEN: Final = "not taken yet"
FAILED: Final = "failed"


@dataclass(frozen=True)
class SnapshotPlan:
    """The instructions for every task. `consumers` is the progress of each consumer; without consumers, the
    tail is the limit."""

    connection: ConnectionOptions
    fold: str
    key: str
    skip_bad: bool
    consumers: tuple[Progress, ...] = ()
    dry_run: bool = False


@dataclass
class FoldResult:
    stream: str
    outcome: str
    offset: str = ""
    messages: int = 0
    skipped: int = 0
    #: The place of the first skipped message, and the reason.
    skipped_first: str = ""
    detail: str = ""


class Snapshotter:
    """One task's work, connected."""

    def __init__(self, plan: SnapshotPlan) -> None:
        self._plan = plan
        self._reader: Reader = connect(plan.connection)
        self._fold: Fold = find_fold(plan.fold, plan.key)

    @cached_property
    def _store(self) -> SnapshotStore:
        """Connecting to a table may write to it, so a dry run never does."""
        return connect_snapshots(self._plan.connection)

    def run(self, stream: str) -> FoldResult:
        try:
            return self._run(stream)
        except MissingStream:
            return FoldResult(stream, CONFLICT, detail="the stream is gone")
        except (BadMessage, DataLoss, SnapshotRefused) as fault:
            return FoldResult(stream, FAILED, detail=str(fault))

    def _run(self, stream: str) -> FoldResult:
        head = self._reader.head(stream)
        end = self._limit(head)
        before = None if self._plan.dry_run else self._store.latest(stream)
        start = head.earliest
        if before is not None:
            start = head.tail.at(before.offset)
        if end is None or end.offset < start.offset or end.offset == self._reader.beginning:
            return FoldResult(stream, NOT_TAKEN, detail="a consumer has not taken what is retained")
        if end.offset == start.offset:
            return FoldResult(stream, UNCHANGED, end.offset)
        result = FoldResult(stream, PUBLISHED, end.offset)
        state = self._fold.load(before.body if before else None)
        for partition in self._reader.partitions(stream, start, end, _PARTITION_BYTES):
            for batch in self._reader.read(partition, ("offset", "value")):
                result.messages += batch.num_rows
                state = self._fold_batch(result, state, batch)
        return self._publish(result, self._fold.dump(state))

    def _fold_batch(self, result: FoldResult, state: Any, batch: pa.RecordBatch) -> Any:
        """All of the batch's messages at once where the fold knows how, else one by one. Raises BadMessage
        if none may be skipped."""
        messages = batch.column("value").to_pylist()
        if isinstance(self._fold, BulkFold):
            with suppress(BadMessage):
                return self._fold.apply_many(state, messages)
        for row, message in enumerate(messages):
            try:
                state = self._fold.apply(state, message)
            except BadMessage as fault:
                where = f"message at {batch.column('offset')[row]}: {fault}"
                if not self._plan.skip_bad:
                    raise BadMessage(f"stream {result.stream}, {where}") from fault
                result.skipped += 1
                result.skipped_first = result.skipped_first or where
        return state

    def _limit(self, head: Head) -> Position | None:
        """Never beyond the progress of every consumer: retention follows the snapshot."""
        if not self._plan.consumers:
            return head.tail
        floor = taken_by_all(self._plan.consumers, self._plan.connection.bucket, head)
        if floor is None or is_past(floor.offset, head.tail.offset):
            return None
        return head.tail.at(floor.offset)

    def _publish(self, result: FoldResult, body: bytes) -> FoldResult:
        if self._plan.dry_run:
            result.outcome = FOLDED
            result.detail = body.decode(errors="replace")
            return result
        try:
            self._store.publish(result.stream, result.offset, self._fold.content_type, body)
        except SnapshotRefused as refusal:
            result.outcome = CONFLICT if refusal.is_conflict else FAILED
            result.detail = str(refusal)
        return result


def snapshot_streams(spark: Any, plan: SnapshotPlan, streams: Iterable[str], tasks: int) -> Any:
    """A data frame with the outcome of each stream."""
    names = spark.createDataFrame([(name,) for name in streams], "stream STRING").repartition(tasks)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forget_archives()
        snapshotter = Snapshotter(plan)
        for batch in batches:
            for name in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pylist([vars(snapshotter.run(name))], schema=_RESULT)

    return names.mapInArrow(work, RESULT_SCHEMA)

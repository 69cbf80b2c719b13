"""The manifest of a batch: which appends it is, in which order. The first one that is written stays.

Names under the staging directory. All bodies lie below one name, so that a rule of the file system may remove
those that nobody came back for, and not the notes, which are small:

| name                    | holds                                                                        |
| ----------------------- | ---------------------------------------------------------------------------- |
| `staged/<id>/<random>`  | what one attempt of a task wrote: bodies of appends, back to back            |
| `<id>/manifest/<batch>` | the batch's appends; the first manifest that is put stays                    |
| `<id>/done/<batch>`     | all of them are in their streams                                             |

A manifest carries the fingerprint of what was staged: where it goes and what it is, whatever its order and
however it was cut. Under an id that was used for something else, a write would publish nothing and say that
it succeeded; by the fingerprint it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from tidemark.spark.options.write import STAGED
from tidemark.spark.staging import Staging

#: The number of manifests kept: older batches are fenced by their epoch anyway.
KEPT: Final = 100
#: Files of killed tasks are removed after so long.
ORPHAN_SECONDS: Final = 24 * 3600.0
BEGIN_ANEW: Final = (
    "begin with a new checkpoint and a new producerId, from startingOffsets at the place up to which the"
    " target is complete"
)
#: The error and the remedy for a checkpoint.
OLDER_CHECKPOINT: Final = (
    f"older than what the query has published. Go on with the newest checkpoint, or {BEGIN_ANEW}"
)


class ForeignBatch(Exception):
    """Another query has already used this producer id for a batch of this number."""


class ReusedId(Exception):
    """This producer id was used for a write of something else, or to somewhere else."""


class AppendRun(msgspec.Struct, frozen=True, array_like=True):
    """Appends to one stream that lie back to back in `length` bytes of a staged file (`encode_body`)."""

    stream: str
    file: str
    start: int
    length: int
    appends: int
    rows: int

    def is_before(self, other: AppendRun) -> bool:
        return (self.stream, self.file, self.start + self.length) == (other.stream, other.file, other.start)

    def with_next(self, other: AppendRun) -> AppendRun:
        return msgspec.structs.replace(
            self,
            length=self.length + other.length,
            appends=self.appends + other.appends,
            rows=self.rows + other.rows,
        )


class Fingerprint(msgspec.Struct, frozen=True):
    """The content of a batch: `target` says in words where its streams are, `rows_by_stream` how many rows go
    to each, and `checksum` is the sum of the rows' CRC-32, each together with its stream's, modulo 2^64. It
    depends neither on the order of the rows nor on tasks and appends."""

    target: str
    rows_by_stream: Mapping[str, int]
    checksum: int

    @property
    def rows(self) -> int:
        return sum(self.rows_by_stream.values())

    def __str__(self) -> str:
        first, *others = sorted(self.rows_by_stream) or ["no stream"]
        more = f" and {len(others)} more streams" if others else ""
        return f"{self.rows} rows to {first}{more} of {self.target} (checksum {self.checksum:016x})"


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """`query` is the query that staged it, where there is one; a batch write has none."""

    query: str
    runs: tuple[AppendRun, ...]
    #: None in a manifest of a version that had none.
    fingerprint: Fingerprint | None = None

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    def by_stream(self) -> dict[str, list[AppendRun]]:
        streams: dict[str, list[AppendRun]] = {}
        for run in self.runs:
            streams.setdefault(run.stream, []).append(run)
        return streams


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes) -> Manifest:
    return msgspec.json.decode(data, type=Manifest)


class StagedBatches:
    """The batches of one producer id."""

    def __init__(self, staging: Staging, producer_id: str) -> None:
        self._staging = staging
        self._root = producer_id

    def name(self, kind: str, batch: int) -> str:
        return f"{self._root}/{kind}/{batch:016d}"

    def load(self, batch: int) -> Manifest | None:
        data = self._staging.get(self.name("manifest", batch))
        return None if data is None else decode_manifest(data)

    def settle(
        self, batch: int, ours: Manifest, find_use: Callable[[], str | None], *, resume: bool
    ) -> Manifest:
        """The batch's one manifest: ours, or that of an attempt before us.

        `find_use` says what the streams have of the batch already. Appends follow a manifest, so streams that
        have some of a batch without one say that its manifest is gone: ours would be taken for that, and
        its appends for those that are there. To ask, then look, then put is enough for two drivers: what
        the other one has appended by then follows a manifest that is seen.

        Raises ForeignBatch, and ReusedId if the attempt before us staged something else; the order of the
        rows does not count. With `resume` the rows may differ, and the staged ones are published; the target
        may never change. A streaming query repeats its newest batch alone. So where a later batch has a
        manifest, or this one other rows, its checkpoint is older than what it published, and to take the
        batch for a repetition would leave rows out.
        """
        settled = self.load(batch)
        is_repeated = settled is not None
        if settled is None and ours.runs:
            used = find_use()
            if used and self.load(batch) is None:
                raise ReusedId(self._explain_loss(batch, used, is_query=bool(ours.query)))
            name = self.name("manifest", batch)
            settled = decode_manifest(self._staging.put_first(name, encode_manifest(ours)))
        if settled is None:
            return ours
        if settled.query != ours.query:
            raise ForeignBatch(
                f"tidemark: batch {batch} of producer id {self._root} belongs to query"
                f" {settled.query or '(a batch write)'}: a query with a new checkpoint needs a new producerId"
            )
        if is_repeated and ours.query and self.load(batch + 1) is not None:
            raise ReusedId(
                f"tidemark: batch {batch} of producer id {self._root} is published already, and so is the one"
                f" after it: the query's checkpoint is {OLDER_CHECKPOINT}"
            )
        was, now = settled.fingerprint, ours.fingerprint
        if was is None or now is None:
            return settled
        if was.target != now.target or (not resume and was != now):
            raise ReusedId(self._explain_reuse(batch, was, now, is_query=bool(ours.query)))
        return settled

    def _explain_loss(self, batch: int, used: str, *, is_query: bool) -> str:
        way_on = BEGIN_ANEW if is_query else "write what the streams lack under a new producerId"
        return (
            f"tidemark: {used} of producer id {self._root} already, and stagingDir has no manifest of batch"
            f" {batch}: it was emptied, or is another directory, or another driver is further on. Nothing was"
            f" written. Give the directory as it was when that was published; if it is gone, {way_on}"
        )

    def _explain_reuse(self, batch: int, was: Fingerprint, now: Fingerprint, *, is_query: bool) -> str:
        if is_query and was.target == now.target:
            return (
                f"tidemark: batch {batch} of producer id {self._root} was staged with {was}, and now"
                f" has {now}. If the query's checkpoint was restored or copied, it is {OLDER_CHECKPOINT}."
                " If not, the query brings other rows when it repeats a batch: start it once with"
                f" resume=true and producerId={self._root}, which publishes what was staged first"
            )
        text = f"tidemark: producer id {self._root} was used for {was}; this write has {now}"
        if was.target != now.target or self.is_done(batch):
            return f"{text}: give it an id of its own"
        return (
            f"{text}: give it an id of its own. The earlier write is not complete: write it again as it was,"
            " or with resume=true, which publishes what it staged and nothing of this write"
        )

    def is_done(self, batch: int) -> bool:
        return self._staging.get(self.name("done", batch)) is not None

    def finish(self, batch: int, settled: Manifest, leftovers: Iterable[str]) -> None:
        """Note that all is published, then give the space back. Safe to repeat."""
        if settled.runs:
            self._staging.put_first(self.name("done", batch), b"{}")
        self._staging.delete({run.file for run in settled.runs} | set(leftovers))
        if batch >= KEPT:
            self.forget(batch - KEPT)
        if batch % KEPT == 0:
            self._staging.delete(self._staging.older_than(f"{STAGED}/{self._root}", ORPHAN_SECONDS))

    def forget(self, batch: int) -> None:
        self._staging.delete([self.name("manifest", batch), self.name("done", batch)])

    def drop(self, batch: int, files: Iterable[str]) -> None:
        """Remove what an attempt staged, unless the batch's manifest speaks of it."""
        settled = self.load(batch)
        kept = {run.file for run in settled.runs} if settled else set()
        self._staging.delete(set(files) - kept)

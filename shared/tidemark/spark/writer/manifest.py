"""The manifest of a batch: its appends in order. The first manifest that is written stays.

Names under the staging directory. All bodies lie in one directory, so that a lifecycle rule may remove
abandoned bodies but keep the notes, which are small:

| name                    | holds                                                                        |
| ----------------------- | ---------------------------------------------------------------------------- |
| `staged/<id>/<random>`  | the output of one attempt of a task: bodies of appends, back to back         |
| `<id>/manifest/<batch>` | the batch's appends; a conditional write keeps the first manifest            |
| `<id>/done/<batch>`     | marks that all appends are in their streams                                  |

A manifest has a fingerprint of the staged rows: their target and content, independent of order, partitions
and appends. Without it, a write of other rows under a used id would publish nothing and report success; the
fingerprint makes it fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from tidemark.spark.options.write import STAGED
from tidemark.spark.staging import Staging

#: Number of manifests to keep. Older batches need none: the server fences them by their epoch.
KEPT: Final = 100
#: Age in seconds at which files of killed tasks are removed.
ORPHAN_SECONDS: Final = 24 * 3600.0
BEGIN_ANEW: Final = (
    "begin with a new checkpoint and a new producerId, from startingOffsets at the place up to which the"
    " target is complete"
)
#: The end of an error text for an old checkpoint, with the remedy.
OLDER_CHECKPOINT: Final = (
    f"older than what the query has published. Go on with the newest checkpoint, or {BEGIN_ANEW}"
)


class ForeignBatch(Exception):
    """Another query has already used this producer id for a batch of this number."""


class ReusedId(Exception):
    """This producer id was used for other rows or another target."""


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
        length, appends = self.length + other.length, self.appends + other.appends
        return AppendRun(self.stream, self.file, self.start, length, appends, self.rows + other.rows)


class Fingerprint(msgspec.Struct, frozen=True):
    """The content of a batch, independent of the order of rows, of tasks and of appends. `target` is the
    location of the streams as text. `checksum` is the sum, modulo 2^64, of the CRC-32 of each row, seeded
    with the CRC-32 of its stream's name."""

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
    """The appends of a batch. `query` is the id of the streaming query; empty for a batch write."""

    query: str
    runs: tuple[AppendRun, ...]
    #: None in a manifest of an older version.
    fingerprint: Fingerprint | None = None

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    def by_stream(self) -> dict[str, list[AppendRun]]:
        streams: dict[str, list[AppendRun]] = {}
        for run in self.runs:
            streams.setdefault(run.stream, []).append(run)
        return streams


class StagedBatches:
    def __init__(self, staging: Staging, producer_id: str) -> None:
        self._staging = staging
        self._root = producer_id

    def name(self, kind: str, batch: int) -> str:
        return f"{self._root}/{kind}/{batch:016d}"

    def load(self, batch: int) -> Manifest | None:
        data = self._staging.get(self.name("manifest", batch))
        return None if data is None else msgspec.json.decode(data, type=Manifest)

    def settle(
        self, batch: int, ours: Manifest, find_use: Callable[[], str | None], *, resume: bool
    ) -> Manifest:
        """Return the batch's manifest: the manifest of an earlier attempt or, if there is none, ours.

        `find_use` describes the appends of the batch in the streams. A manifest is written before the first
        append. If the streams have appends of the batch but there is no manifest, it was removed; the batch
        must fail, because the server would take our appends for repetitions of the earlier ones. The order
        (probe the streams, load the manifest again, write ours) is safe with two drivers: if the probe sees
        appends of the other driver, the load after it sees its manifest.

        Raises ForeignBatch, and ReusedId if the earlier attempt staged other rows (in any order) or for
        another target. With `resume` the rows may differ, and the staged rows are published; the target must
        be the same. A streaming query repeats its newest batch only. If a later batch has a manifest, or this
        batch has other rows, the query's checkpoint is older than its published batches; a repetition would
        then leave rows out.
        """
        settled = self.load(batch)
        is_repeated = settled is not None
        if settled is None and ours.runs:
            used = find_use()
            if used and self.load(batch) is None:
                raise ReusedId(self._explain_loss(batch, used, is_query=bool(ours.query)))
            first = self._staging.put_first(self.name("manifest", batch), msgspec.json.encode(ours))
            settled = msgspec.json.decode(first, type=Manifest)
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
        """Mark the batch as done, then delete its staged files. Idempotent."""
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
        """Remove an attempt's staged files, except files in the batch's manifest."""
        settled = self.load(batch)
        kept = {run.file for run in settled.runs} if settled else set()
        self._staging.delete(set(files) - kept)

"""The manifest of a batch: which appends it is, in which order. The first one that is written stays.

Names under the staging directory, for each producer id:

| name                       | holds                                                             |
| -------------------------- | ----------------------------------------------------------------- |
| `staged/<random>`          | what one attempt of a task wrote: bodies of appends, back to back |
| `manifest/<batch>`         | the batch's appends; the first manifest that is put stays         |
| `done/<batch>`             | all of them are in their streams                                  |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from typing import Final

import orjson

from tidemark.spark.staging.files import Staging

#: Batches whose manifest is kept: whoever comes later than that is fenced by its epoch anyway.
KEPT: Final = 100
#: What a killed task left behind is removed after so long.
ORPHAN_SECONDS: Final = 24 * 3600.0


class ForeignBatch(Exception):
    """Another query has already used this producer id for a batch of this number."""


@dataclass(frozen=True)
class AppendRun:
    """Appends to one stream that lie back to back in `length` bytes of a staged file (`bodies.py`)."""

    stream: str
    file: str
    start: int
    length: int
    appends: int
    rows: int

    def is_before(self, other: AppendRun) -> bool:
        return (self.stream, self.file, self.start + self.length) == (other.stream, other.file, other.start)

    def with_next(self, other: AppendRun) -> AppendRun:
        return replace(
            self,
            length=self.length + other.length,
            appends=self.appends + other.appends,
            rows=self.rows + other.rows,
        )


@dataclass(frozen=True)
class Manifest:
    """`query` is the query that staged it, where there is one; a batch write has none."""

    query: str
    runs: tuple[AppendRun, ...]

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    def by_stream(self) -> dict[str, list[AppendRun]]:
        streams: dict[str, list[AppendRun]] = {}
        for run in self.runs:
            streams.setdefault(run.stream, []).append(run)
        return streams


def encode_manifest(manifest: Manifest) -> bytes:
    return orjson.dumps({"query": manifest.query, "runs": [astuple(run) for run in manifest.runs]})


def decode_manifest(data: bytes) -> Manifest:
    value = orjson.loads(data)
    return Manifest(value["query"], tuple(AppendRun(*run) for run in value["runs"]))


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

    def settle(self, batch: int, ours: Manifest) -> Manifest:
        """The batch's one manifest: ours, or that of an attempt before us. Raises ForeignBatch."""
        settled = self.load(batch)
        if settled is None and ours.runs:
            settled = decode_manifest(
                self._staging.put_first(self.name("manifest", batch), encode_manifest(ours))
            )
        if settled is None:
            return ours
        if settled.query != ours.query:
            raise ForeignBatch(
                f"tidemark: batch {batch} of producer id {self._root} belongs to query"
                f" {settled.query or '(a batch write)'}: a query with a new checkpoint needs a new producerId"
            )
        return settled

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
            self._staging.delete(self._staging.older_than(f"{self._root}/staged", ORPHAN_SECONDS))

    def forget(self, batch: int) -> None:
        self._staging.delete([self.name("manifest", batch), self.name("done", batch)])

    def drop(self, batch: int, files: Iterable[str]) -> None:
        """Remove what an attempt staged, unless the batch's manifest speaks of it."""
        settled = self.load(batch)
        kept = {run.file for run in settled.runs} if settled else set()
        self._staging.delete(set(files) - kept)

"""Offsets of a query over very many streams, by difference.

Spark keeps an offset with each batch and shows three in each progress. A whole one takes 60 bytes for each
stream, although few have moved since the last batch. With `offsetsDir` an offset names only the streams that
are elsewhere than in a base: a whole offset, in a file that is there before any offset refers to it, and is
never changed. An offset says where its base is, so it can be read without the option too.

The bases of one query lie in a directory that no other query's are in, because its offsets pass the name on.
When a new one is written, those that are older than a week are removed, but for the one before it: no batch
that Spark may still ask for refers to another. A checkpoint that is restored later than that is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tidemark.spark.staging import Staging, open_staging

Offset = dict[str, Any]
"""The offset that Spark stores for each batch: `{stream: [offset, incarnation, content type, ended since,
closed]}`, and under the empty name, which no stream has, `{"bucket/pattern": milliseconds since 1970}`, or,
by difference, a list of that and the members of `Base`. A version that does not know of the list, or of the
object, stops with an error: it would read again what was read."""

#: The name that no stream has.
BESIDE: Final = ""
#: How many streams an offset names before a new base is written; fewer streams need no base.
MOST_NAMED: Final = 1000
_KEPT_SECONDS: Final = 7 * 24 * 3600


class MissingBase(Exception):
    def __init__(self, place: str) -> None:
        super().__init__(
            f"tidemark: the checkpoint refers to {place}, which is not there or was changed; put it back, or"
            " begin a new checkpoint, with startingOffsets at the place up to which the target is complete"
        )


class Base(NamedTuple):
    directory: str
    name: str
    #: The streams of the base that the offset has no more.
    gone: list[str]


class Bases:
    """Those that one query writes, in its driver. Without a directory it writes none."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        #: The base of the offset that was seen last.
        self._name = ""

    def see(self, offset: Mapping[str, Any]) -> None:
        """An offset that Spark has: the next one goes on from its base."""
        _, base = _parts_of(offset)
        self._name = base.name if base is not None and base.directory == self._directory else ""

    def shorten(self, whole: Offset) -> Offset:
        """The same offset, in which few streams are named. For the same offset it is the same text, because
        Spark compares texts."""
        if not self._directory or len(whole) <= MOST_NAMED:
            return whole
        short = self.difference(whole)
        _, base = _parts_of(short)
        if short is whole or len(short) + (len(base.gone) if base else 0) > MOST_NAMED:
            self._write(whole)
            short = self.difference(whole)
        return short

    def difference(self, whole: Offset) -> Offset:
        """The same, also where it is long: for an offset that is shown and not kept."""
        if not self._name:
            return whole
        base = _read_base(self._directory, self._name)
        moved = {name: value for name, value in whole.items() if name and base.get(name) != value}
        gone = [name for name in base if name not in whole]
        return {BESIDE: [whole.get(BESIDE, {}), self._directory, self._name, gone]} | moved

    def _write(self, whole: Offset) -> None:
        staging = _open(self._directory)
        streams = {name: value for name, value in whole.items() if name}
        data = json.dumps(streams, separators=(",", ":")).encode()
        query = self._name.partition("/")[0] or uuid.uuid4().hex
        name = f"{query}/{_digest(data)}"
        staging.put_first(name, zlib.compress(data))
        staging.delete(set(staging.older_than(query, _KEPT_SECONDS)) - {name, self._name})
        self._name = name


def whole_offset(offset: Mapping[str, Any]) -> Mapping[str, Any]:
    """The offset with all of its streams. Raises MissingBase."""
    beside, base = _parts_of(offset)
    if base is None:
        return offset
    named = {name: value for name, value in offset.items() if name}
    streams = dict(_read_base(base.directory, base.name)) | named
    for name in base.gone:
        del streams[name]
    return ({BESIDE: beside} if beside else {}) | streams


def _parts_of(offset: Mapping[str, Any]) -> tuple[Any, Base | None]:
    """What it says beside the streams, and its base, if it has one."""
    told = offset.get(BESIDE, {})
    if not isinstance(told, list):
        return told, None
    beside, *base = told
    return beside, Base(*base)


def _open(directory: str) -> Staging:
    """By AWS's own variables: who reads a checkpoint has no options."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return open_staging(directory, None, region)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


@lru_cache(maxsize=2)
def _read_base(directory: str, name: str) -> Mapping[str, Any]:
    """Kept in memory: the one that a batch begins with, and the one that it ends with."""
    try:
        data = zlib.decompress(_open(directory).get(name) or b"")
    except zlib.error:
        data = b""
    if _digest(data) != name.rpartition("/")[2]:
        raise MissingBase(f"{directory}/{name}")
    streams: Mapping[str, Any] = json.loads(data)
    return streams

"""Lists the forks of a stream: a fork names its source, and a source only counts its forks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.log.buckets import list_records
from tidemark.log.lifecycle import load_stream
from tidemark.log.records import StreamRecord
from tidemark.protocol.errors import StreamNotFound
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.list_streams import AT_ONCE
from tidemark.service.stores import Stores

#: Streams whose items one request looks at: some megabytes.
LOOKED_AT: Final = 5000


@dataclass(frozen=True, slots=True)
class Forks:
    """`complete` is false where more streams are in the bucket than are looked at, or forks are in others."""

    source: StreamRecord
    found: list[StreamRecord]
    complete: bool


def list_forks(stores: Stores, key: StreamKey) -> Forks:
    """The forks in the stream's own bucket, in the order of their ids. It takes a query for each 200 streams
    of the bucket, and ends when as many are found as the stream counts. Raises StreamNotFound."""
    source = load_stream(stores.table, key)
    if source is None:
        raise StreamNotFound
    found: list[StreamRecord] = []
    looked_at, after, more = 0, "", source.references > 0
    while more and looked_at < LOOKED_AT and len(found) < source.references:
        records, more = list_records(stores.table, key.bucket, "", after, AT_ONCE)
        found += [each for each in records if each.fork and each.fork.incarnation == source.incarnation]
        looked_at += len(records)
        after = records[-1].key.stream_id if records else after
    return Forks(source, found, len(found) >= source.references)

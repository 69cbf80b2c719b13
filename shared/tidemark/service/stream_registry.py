"""Keeps the registry (`protocol/registry.py`): turns the records of the table's stream into its events.

A record only names the written item, and the stream is then read as it is now. Records may therefore come
late, twice, out of order, and to several processes at once. The registry's conditional write decides which
events are written. Without a registry, the only read checks whether there is one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidemark.log import schema
from tidemark.log.buckets import list_records
from tidemark.log.read import load_stream
from tidemark.log.records import Batch, StreamRecord
from tidemark.log.tails import StreamHead
from tidemark.protocol import registry as rules
from tidemark.protocol.append import Outcome
from tidemark.protocol.errors import SoftDeleted, StaleEpoch, StreamNotFound
from tidemark.protocol.expiry import is_expired
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.append import INLINE_BYTES, AppendRequest, append
from tidemark.service.load import load_head
from tidemark.service.stores import Stores

_log = logging.getLogger("tidemark")

REGISTRY: Final = StreamKey(PLAIN_BUCKET, rules.REGISTRY_ID)
#: Milliseconds for which the existence of a registry is remembered while the records contain only batches.
#: Creations and ends of streams always check.
REMEMBER_MS: Final = 5_000
#: Most existing streams that are listed when the registry is created.
MAX_LISTED: Final = 5_000
#: Most events of a write. The producers that it pushes out are in the same transaction.
_GROUP: Final = 48
_JSON: Final = parse_content_type("application/json")
_STREAM_SK: Final = schema.stream_sk("")


@dataclass(slots=True)
class Written:
    """The changes in some records: the streams whose items were written, and the latest batch of each log."""

    items: dict[str, None] = field(default_factory=dict)
    #: The partition of a log → where its latest batch begins.
    batches: dict[str, int] = field(default_factory=dict)
    #: The registry's own item was written for the first time.
    makes_registry: bool = False


def written_by(writes: Iterable[schema.ItemWrite]) -> Written:
    """The changes of the plain surface's streams."""
    written = Written()
    for event, pk, sk in writes:
        if event == "REMOVE":
            continue
        if pk == schema.bucket_pk(PLAIN_BUCKET) and sk.startswith(_STREAM_SK):
            stream_id = sk.removeprefix(_STREAM_SK)
            written.items[stream_id] = None
            written.makes_registry |= stream_id == rules.REGISTRY_ID
        elif event == "INSERT" and schema.is_log_pk(pk):
            key = schema.decode_log_pk(pk)[0]
            if key.bucket == PLAIN_BUCKET and key != REGISTRY:
                written.batches[pk] = max(schema.decode_batch_start(sk), written.batches.get(pk, 0))
    return written


class StreamRegistry:
    """Keeps the registry. Calls may be repeated with the same records, but must not be concurrent."""

    def __init__(self, stores: Stores, remember_ms: float = REMEMBER_MS) -> None:
        self._stores = stores
        self.remember_ms = remember_ms
        self._looked_ms: int | None = None
        self._exists = False

    def append_changes(self, written: Written) -> None:
        """Append the changes of these writes. Raises storage's errors; the records must then come again."""
        if not written.items and not written.batches:
            return
        if not self._is_kept(is_remembered_enough=not written.items):
            return
        seen = [*self._look_at_items(written.items), *self._look_for_closings(written.batches)]
        try:
            if seen:
                self._append(seen, load_head(self._stores, REGISTRY))
            if written.makes_registry:
                self._list_existing()
        except (StreamNotFound, SoftDeleted):
            self._exists = False

    def _is_kept(self, *, is_remembered_enough: bool) -> bool:
        now_ms = self._stores.clock_ms()
        is_recent = self._looked_ms is not None and now_ms - self._looked_ms < self.remember_ms
        if not (is_recent and is_remembered_enough):
            record = load_stream(self._stores.table, REGISTRY)
            self._exists = record is not None and not record.deleted
            self._looked_ms = now_ms
        return self._exists

    # --- looking ---

    def _look_at_items(self, stream_ids: Iterable[str]) -> Iterator[rules.LiveStream | rules.EndedStream]:
        wanted = [stream_id for stream_id in stream_ids if stream_id != rules.REGISTRY_ID]
        for found in self._stores.concurrency.each(self._look, wanted):
            if found is not None:
                yield found if isinstance(found, rules.EndedStream) else _live(found)

    def _look(self, stream_id: str) -> StreamRecord | rules.EndedStream | None:
        item = self._stores.table.get(schema.stream_key(StreamKey(PLAIN_BUCKET, stream_id)))
        if item is None:
            return None
        if schema.is_end_mark(item):
            mark = schema.decode_end_mark(item)
            return rules.EndedStream(stream_id, mark.ended_ms, "expired" if mark.expired else "deleted")
        record = schema.decode_stream(item)
        if record.deleted:
            # The name stays taken until the forks that keep this stream are gone.
            return rules.EndedStream(stream_id, record.created_ms, None)
        return record

    def _look_for_closings(self, batches: Mapping[str, int]) -> Iterator[rules.LiveStream]:
        """Find the closed streams: closing is a flag on the last batch, which only a tombstone can follow."""
        closed = self._stores.concurrency.each(self._closed_ms, list(batches.items()))
        for pk, closed_ms in zip(batches, closed, strict=True):
            if closed_ms is None:
                continue
            key, incarnation = schema.decode_log_pk(pk)
            found = self._look(key.stream_id)
            if isinstance(found, StreamRecord) and found.incarnation == incarnation:
                yield _live(found, closed_ms)

    def _closed_ms(self, batch: tuple[str, int]) -> int | None:
        pk, start = batch
        items, _ = self._stores.table.query(
            pk,
            at_least=render_offset(start),
            at_most=schema.just_behind(start),
            attributes=schema.STATE_ATTRIBUTES,
        )
        batches = [state for item in items if isinstance(state := schema.decode_state(item), Batch)]
        return next((batch.time_ms for batch in batches if batch.after.closed), None)

    # --- appending ---

    def _append(self, seen: Sequence[rules.LiveStream | rules.EndedStream], registry: StreamHead) -> None:
        epochs = {state.producer_id: state.epoch for state in registry.tail.producers}
        if registry.tail.overflowed:
            unknown = sorted({rules.producer_of(each.stream_id) for each in seen} - epochs.keys())
            keys = [schema.producer_key(registry.record.incarnation, producer_id) for producer_id in unknown]
            items = self._stores.concurrency.each(self._stores.table.get, keys)
            states = [schema.decode_producer(item) for item in items if item]
            epochs |= {state.producer_id: state.epoch for state in states}
        events: list[rules.RegistryEvent] = []
        for each in seen:
            news = rules.events_of(each, epochs.get(rules.producer_of(each.stream_id)))
            if news:
                epochs[rules.producer_of(each.stream_id)] = news[-1].claim.epoch
            events += news
        for group in _groups(events):
            requests = [AppendRequest(_JSON, event.body, claim=event.claim) for event in group]
            results = append(self._stores, REGISTRY, requests)
            refused = [each for each in results if not isinstance(each, Outcome | StaleEpoch)]
            if refused:
                _log.warning("the registry refused %d events: %s", len(refused), refused[0])

    def _list_existing(self) -> None:
        """Append the streams that are older than the registry."""
        registry = load_head(self._stores, REGISTRY)
        if registry.record.touched_ms != registry.record.created_ms:
            return  # The registry has been used since its creation.
        after, listed = "", 0
        more = True
        while more and listed < MAX_LISTED:
            records, more = list_records(self._stores.table, PLAIN_BUCKET, "", after, 500)
            now_ms = self._stores.clock_ms()
            live = [
                _live(record)
                for record in records
                if record.key != REGISTRY
                and not record.deleted
                and not is_expired(record.expiry, record.used_ms, now_ms)
            ]
            self._append(live, load_head(self._stores, REGISTRY))
            listed += len(live)
            after = max([after, *(record.key.stream_id for record in records)])
        if more:
            _log.warning("the registry lists the first %d streams; later ones as they change", listed)


def _live(record: StreamRecord, closed_ms: int | None = None) -> rules.LiveStream:
    return rules.LiveStream(record.key.stream_id, record.content_type.served, record.created_ms, closed_ms)


def _groups(events: Sequence[rules.RegistryEvent]) -> Iterator[list[rules.RegistryEvent]]:
    """Divide the events in order into groups that fit an item: the notifier writes nothing to S3."""
    left = list(events)
    while left:
        count = min(_GROUP, len(left))
        while sum(len(event.body) + 1 for event in left[:count]) > INLINE_BYTES:
            count //= 2
        yield left[:count]
        left = left[count:]

"""Create (§5.1): idempotent, and a fresh start where the old stream has expired."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.blobs.store import batch_blob_key
from tidemark.log.append import TailMoved
from tidemark.log.lifecycle import (
    StreamChanged,
    StreamExists,
    create_stream,
    replace_stream,
    tombstone,
)
from tidemark.log.read import load_last
from tidemark.log.records import Batch, StreamRecord
from tidemark.log.schema import log_pk
from tidemark.log.tails import Known
from tidemark.protocol.content_type import ContentType
from tidemark.protocol.create import Configuration, check_same_configuration
from tidemark.protocol.errors import Busy
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.messages import parse_messages
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.append import INLINE_BYTES
from tidemark.service.load import known_from
from tidemark.service.stores import Stores

_MAX_TRIES = 8


@dataclass(frozen=True, slots=True)
class CreateRequest:
    content_type: ContentType
    expiry: Expiry
    closed: bool
    body: bytes = b""

    @property
    def configuration(self) -> Configuration:
        return Configuration(self.content_type, self.expiry, self.closed)


@dataclass(frozen=True, slots=True)
class Created:
    """`is_new` tells 201 from 200."""

    known: Known
    is_new: bool


def create(stores: Stores, key: StreamKey, request: CreateRequest) -> Created:
    """Make the stream, or find that it is there as asked for.

    Raises Malformed for a body that is not what the content type says, Conflict where a
    different stream is there.
    """
    made = _make(stores, key, request)
    for tries in range(_MAX_TRIES):
        try:
            create_stream(stores.table, made.record, _first_batch(made))
        except StreamExists as met:
            found = _meet(stores, met.existing, made, request)
            if found is not None:
                return found
            stores.pause(tries)
        else:
            return _new(stores, made)
    raise Busy


@dataclass(frozen=True, slots=True)
class _Making:
    record: StreamRecord
    first: Batch


def _make(stores: Stores, key: StreamKey, request: CreateRequest) -> _Making:
    now_ms = stores.clock_ms()
    messages = parse_messages(request.content_type, request.body)
    record = StreamRecord(key, stores.new_id(), request.content_type, request.expiry, now_ms, now_ms)
    after = Tail(offset=len(messages.data), closed=request.closed)
    append_id = stores.new_id()
    data, blob = messages.data, None
    if len(data) > INLINE_BYTES:
        blob = batch_blob_key(record.incarnation, append_id)
        stores.blobs.put(blob, data)
    first = Batch(0, after, append_id, now_ms, None if blob else data, blob, messages.lengths)
    return _Making(record, first)


def _first_batch(made: _Making) -> Batch | None:
    """An open stream without content has an empty log."""
    return made.first if made.first.size or made.first.after.closed else None


def _new(stores: Stores, made: _Making) -> Created:
    known = known_from(made.record, _first_batch(made), made.record.created_ms)
    stores.tails.forget(made.record.key)
    stores.tails.learn(known)
    return Created(known, is_new=True)


def _meet(stores: Stores, existing: StreamRecord, made: _Making, request: CreateRequest) -> Created | None:
    """Somebody is there: the same stream, another one, or one that has expired.

    None means that it changed while we looked.
    """
    now_ms = stores.clock_ms()
    last = load_last(stores.table, log_pk(existing.key, existing.incarnation))
    if last is not None and last.tombstone:
        return None
    known = known_from(existing, last, now_ms)
    if known.is_expired(now_ms):
        return _replace(stores, known, made)
    configuration = Configuration(existing.content_type, existing.expiry, known.tail.closed)
    check_same_configuration(configuration, request.configuration)
    stores.tails.learn(known)
    return Created(known, is_new=False)


def _replace(stores: Stores, expired: Known, made: _Making) -> Created | None:
    last = tombstone(expired.tail, made.first.append_id, stores.clock_ms())
    try:
        replace_stream(stores.table, expired.record, last, made.record, _first_batch(made))
    except (StreamChanged, TailMoved):
        return None
    return _new(stores, made)

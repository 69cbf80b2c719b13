"""The registry: the stream `__registry__`, whose messages list the streams of the plain surface.

The registry is kept if a client has created it. Its messages are change events of the ecosystem's State
protocol, in the form that upstream's example server writes and upstream's test UI reads:

    {"type": "stream", "key": "chat/42", "value": {"path": "chat/42", "contentType": …, "createdAt": …},
     "headers": {"operation": "insert", "timestamp": …}}

A creation is an insert, a closing an update, an end (a deletion or an expiry) a delete.

Several processes may write the events of a stream late, repeatedly, and at the same time; each reads the
stream's current state. Each stream's name is therefore an idempotent producer (§5.2.1) of its own, and the
epoch is the name's place in its life cycle: duplicate events are dropped, and stale ones are refused. A
creation is dated after the end before it. With `c` and `c'` as the dates of two creations, and `e` as the
date of the end between them, `c <= e < c'`:

| event                                            | epoch      |
| ------------------------------------------------ | ---------- |
| delete of an earlier stream that is still listed | 4 × c      |
| insert                                           | 4 × c + 1  |
| update: closed                                   | 4 × c + 2  |
| delete                                           | 4 × e + 3  |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import quote

import orjson

from tidemark.protocol.expiry import render_instant
from tidemark.protocol.producer import Claim

REGISTRY_ID: Final = "__registry__"
_STAGES: Final = 4


class Stage(IntEnum):
    REPLACED = 0
    CREATED = 1
    CLOSED = 2
    ENDED = 3


@dataclass(frozen=True, slots=True)
class LiveStream:
    """An existing stream. `closed_ms` is None if the stream is open, or was not checked."""

    stream_id: str
    content_type: str
    created_ms: int
    closed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class EndedStream:
    """A name without a stream. `since_ms` is the time of the end; for a stream kept for its forks, the time
    of the creation, because its item has no other. `reason` is "deleted" or "expired", if known."""

    stream_id: str
    since_ms: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class RegistryEvent:
    claim: Claim
    body: bytes


def producer_of(stream_id: str) -> str:
    """Return the producer id of a stream's events: a hash, because names may be long and non-ASCII."""
    return blake2b(stream_id.encode(), digest_size=16).hexdigest()


def events_of(seen: LiveStream | EndedStream, known_epoch: int | None) -> list[RegistryEvent]:
    """Return the missing events of a stream, in order. `known_epoch` is the epoch of its producer in the
    registry; None if the registry has no event of the stream."""
    if isinstance(seen, EndedStream):
        # Written even without an earlier creation: another process may have seen the stream, and write later.
        return _later([_delete(seen.stream_id, seen.since_ms, Stage.ENDED, seen.reason)], known_epoch)
    found = []
    if known_epoch is not None and known_epoch % _STAGES in {Stage.CREATED, Stage.CLOSED}:
        found.append(_delete(seen.stream_id, seen.created_ms, Stage.REPLACED, "replaced"))
    found.append(_change(seen, Stage.CREATED, "insert", seen.created_ms))
    if seen.closed_ms is not None:
        found.append(_change(seen, Stage.CLOSED, "update", seen.closed_ms))
    return _later(found, known_epoch)


def _later(events: list[RegistryEvent], known_epoch: int | None) -> list[RegistryEvent]:
    return [event for event in events if known_epoch is None or event.claim.epoch > known_epoch]


def _change(seen: LiveStream, stage: Stage, operation: str, at_ms: int) -> RegistryEvent:
    value: dict[str, Any] = {
        "path": _path(seen.stream_id),
        "contentType": seen.content_type,
        "createdAt": seen.created_ms,
    }
    if stage is Stage.CLOSED:
        value["closed"] = True
    headers = {"operation": operation, "timestamp": render_instant(at_ms)}
    return _event(seen.stream_id, seen.created_ms, stage, headers, value)


def _delete(stream_id: str, at_ms: int, stage: Stage, reason: str | None) -> RegistryEvent:
    headers = {"operation": "delete"}
    if reason is not None:
        headers |= {"timestamp": render_instant(at_ms), "reason": reason}
    return _event(stream_id, at_ms, stage, headers)


def _event(
    stream_id: str, at_ms: int, stage: Stage, headers: dict[str, str], value: dict[str, Any] | None = None
) -> RegistryEvent:
    event: dict[str, Any] = {"type": "stream", "key": _path(stream_id)}
    if value is not None:
        event["value"] = value
    body = orjson.dumps(event | {"headers": headers})
    return RegistryEvent(Claim(producer_of(stream_id), at_ms * _STAGES + stage, 0), body)


def _path(stream_id: str) -> str:
    """Return the stream's path in its URL, after `/v1/stream/`."""
    return quote(stream_id)

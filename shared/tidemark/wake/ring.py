"""What a queue's message says: there is something in this log, from this offset on."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tidemark.log.schema import decode_log_pk, is_log_pk
from tidemark.protocol.stream_key import StreamKey


class NotARing(ValueError):
    """A message that `encode_ring` did not write."""


@dataclass(frozen=True, slots=True)
class Ring:
    """`start` is where the newest batch begins: who has read further has heard of it."""

    log_pk: str
    start: int

    @property
    def key(self) -> StreamKey:
        return decode_log_pk(self.log_pk)[0]

    @property
    def incarnation(self) -> str:
        return decode_log_pk(self.log_pk)[1]


def encode_ring(ring: Ring) -> str:
    """Plain ASCII: a stream's name may hold characters that no queue accepts."""
    return json.dumps([ring.log_pk, ring.start], separators=(",", ":"))


def decode_ring(body: str) -> Ring:
    """Raises NotARing."""
    try:
        log_pk, start = json.loads(body)
    except (ValueError, TypeError):
        raise NotARing(body) from None
    if not (isinstance(log_pk, str) and is_log_pk(log_pk) and isinstance(start, int)):
        raise NotARing(body)
    return Ring(log_pk, start)

"""What a queue's message says: there is something in this log, from this offset on."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tidemark.log.schema import decode_log_pk
from tidemark.protocol.stream_key import StreamKey


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
    """Raises ValueError for what `encode_ring` did not write."""
    log_pk, start = json.loads(body)
    if not isinstance(log_pk, str) or not isinstance(start, int):
        raise ValueError(body)  # noqa: TRY004 - the message is wrong, not its type
    return Ring(log_pk, start)

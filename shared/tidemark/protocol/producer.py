"""Order of appends: Stream-Seq (§5.2), and idempotent producers, whose retried append is written once
(§5.2.1).

Writers agree on Stream-Seq values among themselves; the values are compared byte by byte. In Tidemark the
scope is the stream: one last value for all its writers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidemark.protocol.errors import Malformed, SequenceGap, SequenceRegression, StaleEpoch
from tidemark.protocol.header_values import parse_integer

MAX_LENGTH: Final = 256


def parse_stream_seq(value: str | None) -> str | None:
    """Raises Malformed."""
    if value is None:
        return None
    if not 0 < len(value) <= MAX_LENGTH or not value.isascii():
        raise Malformed(f"Stream-Seq must be 1 to {MAX_LENGTH} ASCII characters")
    check_sent_once("Stream-Seq", value)
    return value


def check_sent_once(name: str, value: str) -> None:
    """Raise Malformed for a comma in free text, because gateways join repeated headers with one."""
    if "," in value:
        raise Malformed(
            f"{name} must be sent once and must not contain a comma: gateways join repeated headers with one"
        )


def check_stream_seq(last: str | None, received: str) -> None:
    """Raise SequenceRegression unless `received` is greater than `last`, byte by byte (both are ASCII)."""
    if last is not None and received <= last:
        raise SequenceRegression(last, received)


MAX_ID_LENGTH: Final = 256

_PRINTABLE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Claim:
    """The three producer headers of one append."""

    producer_id: str
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The last accepted append of one producer, and the offset after it."""

    producer_id: str
    epoch: int
    seq: int
    end: int


def parse_claim(producer_id: str | None, epoch: str | None, seq: str | None) -> Claim | None:
    """Return the claim, which needs all three headers, or None without any. Raises Malformed."""
    if producer_id is None and epoch is None and seq is None:
        return None
    if producer_id is None or epoch is None or seq is None:
        raise Malformed("Producer-Id, Producer-Epoch and Producer-Seq must be sent together or not at all")
    if len(producer_id) > MAX_ID_LENGTH or not _PRINTABLE.fullmatch(producer_id):
        raise Malformed(f"Producer-Id must be 1 to {MAX_ID_LENGTH} printable ASCII characters")
    check_sent_once("Producer-Id", producer_id)
    return Claim(producer_id, parse_integer("Producer-Epoch", epoch), parse_integer("Producer-Seq", seq))


def check_producer(state: ProducerState | None, claim: Claim) -> None:
    """Check that the producer may make this append, or has made it before (`is_duplicate`).

    Raises StaleEpoch (403), SequenceGap (409) or Malformed (400), in the order of the validation logic of
    §5.2.1. A new producer starts at any epoch, with sequence 0.
    """
    if state is None:
        if claim.seq != 0:
            raise SequenceGap(expected=0, received=claim.seq)
    elif claim.epoch < state.epoch:
        raise StaleEpoch(state.epoch)
    elif claim.epoch > state.epoch:
        if claim.seq != 0:
            raise Malformed(f"A new Producer-Epoch starts with Producer-Seq 0, got {claim.seq}")
    elif claim.seq > state.seq + 1:
        raise SequenceGap(expected=state.seq + 1, received=claim.seq)


def is_duplicate(state: ProducerState | None, claim: Claim) -> bool:
    """Whether an append that passes `check_producer` was accepted before (204, §5.2.1)."""
    return state is not None and claim.epoch == state.epoch and claim.seq <= state.seq

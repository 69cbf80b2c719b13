"""Deciding appends on a tail, with the producers that the tail no longer carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from tidemark.log.schema import decode_producer, producer_key
from tidemark.log.tails import StreamHead
from tidemark.protocol.append import Append, AppendPlan, plan_appends, unknown_producers
from tidemark.protocol.producer import ProducerState
from tidemark.service.stores import Stores

NONE_KNOWN: Final[Mapping[str, ProducerState | None]] = MappingProxyType({})


def decide(
    stores: Stores,
    head: StreamHead,
    appends: Sequence[Append],
    known: Mapping[str, ProducerState | None] = NONE_KNOWN,
) -> AppendPlan:
    """Decide each append in order, on the head and on the items of the producers that it does not name.
    `known` are those that were looked up for this very head.

    The items are read after the head, never before: read before, they could miss a producer that appends and
    is pushed out in between. They may say more than an old head does; a batch of such a plan is refused.
    Raises what storage raises.
    """
    table, incarnation = stores.table, head.record.incarnation
    unknown = sorted(unknown_producers(head.tail, appends) - known.keys())
    if not unknown:
        return plan_appends(head.tail, appends, known)
    found = stores.concurrency.each(
        lambda producer_id: table.get(producer_key(incarnation, producer_id)), unknown
    )
    states = [decode_producer(item) if item else None for item in found]
    return plan_appends(head.tail, appends, {**known, **dict(zip(unknown, states, strict=True))})

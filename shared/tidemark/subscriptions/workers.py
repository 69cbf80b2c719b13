"""The steps of the wake cycle (§7), each committed by one conditional write to the subscription's item.

`state.py` says what the steps are. A step that loses a race is decided again on what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from tidemark.log.table import Write
from tidemark.protocol.errors import Busy, InvalidAck, InvalidSubscription, NoPendingWork
from tidemark.service.stores import Stores
from tidemark.subscriptions.configuration import SubscriptionKind
from tidemark.subscriptions.lifecycle import activate, require_subscription
from tidemark.subscriptions.pending import (
    PendingStream,
    acked_in,
    find_head,
    find_pending,
    mark_appended,
    mark_what_is_pending,
)
from tidemark.subscriptions.records import SubscriptionRecord
from tidemark.subscriptions.state import (
    WakePhase,
    WakeState,
    attempt_succeeded,
    begin_wake,
    check_fence,
    check_unclaimed,
    claim_wake,
    decide_ack,
    end_wake,
    extend_lease,
    phase,
)
from tidemark.subscriptions.storage import (
    MAX_ACKS,
    SubscriptionChanged,
    ack_link,
    commit_subscription,
    load_link,
)
from tidemark.subscriptions.token import make_token, token_generation

_MAX_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Ack:
    path: str
    offset: str


@dataclass(frozen=True, slots=True)
class WakeRequest:
    """A callback, an ack or a release: its token and its wake."""

    token: str | None
    generation: int
    wake_id: str
    acks: Sequence[Ack] = ()
    done: bool = False


@dataclass(frozen=True, slots=True)
class Claimed:
    record: SubscriptionRecord
    token: str
    streams: Sequence[PendingStream]


def new_wake_id(stores: Stores) -> str:
    return f"w_{stores.new_id()}"


def commit(
    stores: Stores, seen: SubscriptionRecord, wake: WakeState, acks: Sequence[Write] = ()
) -> SubscriptionRecord:
    """Raises SubscriptionChanged."""
    return commit_subscription(stores.table, seen, replace(seen, wake=wake), stores.new_id(), acks)


def begin(stores: Stores, seen: SubscriptionRecord) -> SubscriptionRecord:
    """A new generation; its delivery follows from the item's stream record. Raises SubscriptionChanged."""
    asked, now_ms = seen.configuration, stores.clock_ms()
    wake = begin_wake(seen.wake, asked.kind, new_wake_id(stores), now_ms, asked.lease_ttl_ms)
    return commit(stores, seen, wake)


def begin_if_pending(stores: Stores, seen: SubscriptionRecord) -> bool:
    """After a wake has ended: begin the next one if a stream still has something new, and say whether. If
    another transition comes first, that one looks at the streams itself."""
    if not find_pending(stores, seen, limit=1):
        return False
    with suppress(SubscriptionChanged):
        begin(stores, seen)
    return True


def claim(stores: Stores, subscription_id: str, worker: str) -> Claimed:
    """A worker takes the lease (§7.2). Raises SubscriptionNotFound, InvalidSubscription, AlreadyClaimed,
    NoPendingWork.

    An append that was acknowledged before the claim is found, though the trigger may not have come by yet.
    """
    for tries in range(_MAX_TRIES):
        record = require_pull_wake(stores, subscription_id)
        if not record.active:
            record = activate(stores, record)
        now_ms = stores.clock_ms()
        check_unclaimed(record.wake, now_ms)
        mark_appended(stores, record)
        streams = find_pending(stores, record)
        if not streams and mark_what_is_pending(stores, record):
            streams = find_pending(stores, record)
        try:
            if streams:
                lease_ttl_ms = record.configuration.lease_ttl_ms
                wake = claim_wake(record.wake, worker, new_wake_id(stores), now_ms, lease_ttl_ms)
                record = commit(stores, record, wake)
                return Claimed(record, make_token(record, now_ms), streams)
            if record.wake.wake_id is not None:
                # Its work is gone, and its wake event was read: without this no event would follow. Later
                # appends leave a mark, and are looked for once more.
                record = commit(stores, record, end_wake(record.wake))
                begin_if_pending(stores, record)
        except SubscriptionChanged:
            stores.pause(tries)
            continue
        raise NoPendingWork
    raise Busy


def require_pull_wake(stores: Stores, subscription_id: str) -> SubscriptionRecord:
    """Raises SubscriptionNotFound, InvalidSubscription."""
    return _require_kind(stores, subscription_id, SubscriptionKind.PULL_WAKE)


def _require_kind(stores: Stores, subscription_id: str, kind: SubscriptionKind) -> SubscriptionRecord:
    record = require_subscription(stores, subscription_id)
    if record.configuration.kind is not kind:
        raise InvalidSubscription(f"This is no {kind.value} subscription")
    return record


def answer_wake(stores: Stores, subscription_id: str, kind: SubscriptionKind, request: WakeRequest) -> bool:
    """A callback or an ack: apply the acks, then extend the lease, or end the wake where the request says
    `done`. Returns whether another wake follows. Raises what `_check` and `_decide_acks` raise, and Busy."""

    def step(record: SubscriptionRecord) -> bool:
        now_ms = stores.clock_ms()
        _check(record, request, now_ms)
        acks = _decide_acks(stores, record, request.acks)
        extended = extend_lease(record.wake, now_ms, record.configuration.lease_ttl_ms)
        # Beyond what one transaction takes, the lease is extended with each part.
        while len(acks) > MAX_ACKS:
            record = commit(stores, record, extended, acks[:MAX_ACKS])
            acks = acks[MAX_ACKS:]
        record = commit(stores, record, end_wake(extended) if request.done else extended, acks)
        if not request.done:
            return False
        return _begin_next(stores, record)

    return _decide_until_committed(stores, subscription_id, kind, step)


def release(stores: Stores, subscription_id: str, request: WakeRequest) -> bool:
    """Give the lease back without an ack (§7.2). Returns whether another wake follows."""

    def step(record: SubscriptionRecord) -> bool:
        _check(record, request, stores.clock_ms())
        return _begin_next(stores, commit(stores, record, end_wake(record.wake)))

    return _decide_until_committed(stores, subscription_id, SubscriptionKind.PULL_WAKE, step)


def wake_now(stores: Stores, subscription_id: str) -> SubscriptionRecord:
    """On an operator's request: begin a wake for pending streams now, without waiting for the next attempt.
    It is a new generation, so an attempt that is still under way is fenced. Nothing changes while the first
    attempt of a wake is under way. Raises SubscriptionNotFound, AlreadyClaimed, NoPendingWork, Busy."""
    for tries in range(_MAX_TRIES):
        record = require_subscription(stores, subscription_id)
        if not record.active:
            record = activate(stores, record)
        now = phase(record.wake)
        if now in {WakePhase.CLAIMED, WakePhase.LEASED}:
            check_unclaimed(replace(record.wake, holder=record.wake.holder or "webhook"), stores.clock_ms())
        if now is WakePhase.DELIVERING:
            return record
        if not find_pending(stores, record, limit=1) and not mark_what_is_pending(stores, record):
            raise NoPendingWork
        try:
            return begin(stores, record)
        except SubscriptionChanged:
            stores.pause(tries)
    raise Busy


def _decide_until_committed(
    stores: Stores, subscription_id: str, kind: SubscriptionKind, step: Callable[[SubscriptionRecord], bool]
) -> bool:
    for tries in range(_MAX_TRIES):
        try:
            return step(_require_kind(stores, subscription_id, kind))
        except SubscriptionChanged:
            stores.pause(tries)
    raise Busy


def _check(record: SubscriptionRecord, request: WakeRequest, now_ms: int) -> None:
    """Raises WakeTokenInvalid, WakeFenced (§7.3)."""
    generation = token_generation(record, request.token, now_ms)
    check_fence(record.wake, generation, request.generation, request.wake_id)


def _decide_acks(stores: Stores, record: SubscriptionRecord, acks: Sequence[Ack]) -> list[Write]:
    """The writes that raise the cursors, decided on links and tails as they are now. Raises InvalidAck."""
    last = {ack.path: ack.offset for ack in acks}

    def decide(ack: tuple[str, str]) -> Write:
        path, token = ack
        link = load_link(stores.table, record.incarnation, path)
        head = find_head(stores, path)
        if link is None or head is None:
            raise InvalidAck(f"Ack of {path[:80]!r}: the subscription follows no such stream")
        offset = decide_ack(token, acked_in(link, head), head.tail.offset)
        return ack_link(link, offset, head.record.incarnation)

    return stores.concurrency.each(decide, list(last.items()))


def finish_delivery(
    stores: Stores, record: SubscriptionRecord, streams: Sequence[PendingStream], *, slow: bool
) -> None:
    """A webhook has answered `{"done": true}`: ack exactly what it was sent, and end the wake (§7.1). Raises
    SubscriptionChanged. A link that was acked further or removed meanwhile is left as it is."""
    acks = []
    for stream in streams:
        link = load_link(stores.table, record.incarnation, stream.link.path)
        if link == stream.link and link is not None:
            acks.append(ack_link(link, stream.tail, stream.stream_incarnation))
    while len(acks) > MAX_ACKS:
        record = commit(stores, record, record.wake, acks[:MAX_ACKS])
        acks = acks[MAX_ACKS:]
    arrived = replace(attempt_succeeded(record.wake, stores.clock_ms()), slow=slow)
    begin_if_pending(stores, commit(stores, record, end_wake(arrived), acks))  # Nobody is told what follows.


def _begin_next(stores: Stores, record: SubscriptionRecord) -> bool:
    """After a wake has ended: whether another one follows (§7). Appends just before count too, though their
    stream records may not have arrived yet."""
    return begin_if_pending(stores, record) or (
        mark_appended(stores, record) and begin_if_pending(stores, record)
    )

"""The steps that workers take in a delivery (§7): claim, ack, call back, release.

`state.py` describes the steps. A conditional write to the subscription's item commits a step. A step that
loses a race is decided again on the new state.

A delivery's token (§12.9) authenticates callbacks, acks and releases. The secret that signs the tokens of a
subscription is in the subscription's item and in no response. The functions therefore need no shared key, and
the end of a subscription ends all of its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import jwt

from tidemark.log.table import Write
from tidemark.protocol.errors import DeliveryTokenInvalid, InvalidAck, NoPendingWork
from tidemark.service.stores import Stores
from tidemark.subscriptions import lifecycle, pending, state, storage
from tidemark.subscriptions.configuration import SubscriptionKind
from tidemark.subscriptions.lifecycle import activate, require_subscription, until_committed
from tidemark.subscriptions.pending import PendingStream
from tidemark.subscriptions.records import SubscriptionRecord
from tidemark.subscriptions.state import DeliveryState

#: Lifetime of a token, in seconds. A worker that needs longer gets a new delivery.
TOKEN_SECONDS: Final = 24 * 60 * 60
_ALGORITHM: Final = "HS256"


@dataclass(frozen=True, slots=True)
class Answer:
    """A callback, an ack or a release. A release is `done` and has no acks. `acks` are offsets by path."""

    token: str | None
    generation: int
    wake_id: str
    acks: Mapping[str, str] = field(default_factory=dict)
    done: bool = False


@dataclass(frozen=True, slots=True)
class Claimed:
    record: SubscriptionRecord
    token: str
    streams: Sequence[PendingStream]


def new_wake_id(stores: Stores) -> str:
    return f"w_{stores.new_id()}"


def commit(
    stores: Stores,
    seen: SubscriptionRecord,
    delivery: DeliveryState,
    acks: Sequence[Write] = (),
    between: DeliveryState | None = None,
) -> SubscriptionRecord:
    """Write the state of the delivery together with the acks. If the acks need several transactions, those
    before the last write the state `between`, or else the state of `seen`. Raises SubscriptionChanged."""
    while len(acks) > storage.ACKS_AT_ONCE:
        seen = commit(stores, seen, between or seen.delivery, acks[: storage.ACKS_AT_ONCE])
        acks = acks[storage.ACKS_AT_ONCE :]
    return storage.commit_subscription(
        stores.table, seen, replace(seen, delivery=delivery), stores.new_id(), acks
    )


def new_delivery(stores: Stores, seen: SubscriptionRecord) -> DeliveryState:
    asked, now_ms = seen.configuration, stores.clock_ms()
    return state.begin_delivery(seen.delivery, asked.kind, new_wake_id(stores), now_ms, asked.lease_ttl_ms)


def begin_if_pending(stores: Stores, seen: SubscriptionRecord) -> bool:
    """After a delivery has ended, begin the next one if a stream still has something new. Returns whether
    there is something new. If another transition comes first, that transition looks at the streams itself."""
    if not pending.find_pending(stores, seen, limit=1):
        return False
    with suppress(storage.SubscriptionChanged):
        commit(stores, seen, new_delivery(stores, seen))
    return True


def claim(stores: Stores, subscription_id: str, worker: str) -> Claimed:
    """A worker takes the lease (§7.2). Raises SubscriptionNotFound, InvalidSubscription, AlreadyClaimed,
    NoPendingWork.

    The claim finds every append that was acknowledged before, even if its stream record is late.
    """

    def step() -> Claimed:
        record = activate(stores, require_subscription(stores, subscription_id, SubscriptionKind.PULL_WAKE))
        now_ms = stores.clock_ms()
        state.check_unclaimed(record.delivery, now_ms)
        if record.delivery.holder is not None and gives_up(record):
            raise NoPendingWork  # The next step writes the dead letter.
        pending.mark_appended(stores, record)
        streams = pending.find_pending(stores, record)
        if not streams and pending.mark_what_is_pending(stores, record):
            streams = pending.find_pending(stores, record)
        if streams:
            lease_ttl_ms = record.configuration.lease_ttl_ms
            claimed = state.claim_delivery(record.delivery, worker, new_wake_id(stores), now_ms, lease_ttl_ms)
            record = commit(stores, record, claimed)
            return Claimed(record, make_token(record, now_ms), streams)
        if record.delivery.wake_id is not None:
            # The streams of this delivery have nothing new, and its wake event was read. If the delivery
            # stayed open, no event would follow. `begin_if_pending` finds later appends by their marks.
            begin_if_pending(stores, commit(stores, record, state.end_delivery(record.delivery)))
        raise NoPendingWork

    return until_committed(stores, step)


def gives_up(record: SubscriptionRecord) -> bool:
    """Whether `max_attempts` is reached, now that the attempt or the lease has ended."""
    most = record.configuration.max_attempts
    return most is not None and state.attempts_in_vain(record.delivery) >= most


def answer(stores: Stores, subscription_id: str, kind: SubscriptionKind, answered: Answer) -> bool:
    """Apply the acks, then extend the lease, or end the delivery if the answer is `done`. Returns whether
    another delivery follows. Raises SubscriptionNotFound, InvalidSubscription, DeliveryTokenInvalid,
    DeliveryFenced, InvalidAck, and Busy."""

    def step() -> bool:
        record, now_ms = require_subscription(stores, subscription_id, kind), stores.clock_ms()
        generation = token_generation(record, answered.token, now_ms)
        state.check_fence(record.delivery, generation, answered.generation, answered.wake_id)
        acks = _decide_acks(stores, record, answered.acks)
        extended = state.extend_lease(record.delivery, now_ms, record.configuration.lease_ttl_ms)
        last = state.end_delivery(extended) if answered.done else extended
        record = commit(stores, record, last, acks, between=extended)
        if not answered.done:
            return False
        # Recent appends count too (§7): their stream records may not have arrived yet.
        return begin_if_pending(stores, record) or (
            pending.mark_appended(stores, record) and begin_if_pending(stores, record)
        )

    return until_committed(stores, step)


def deliver_now(stores: Stores, subscription_id: str) -> SubscriptionRecord:
    """Begin a delivery for pending streams now, on an operator's request, without waiting for the back-off.
    The new generation fences a retry that is under way. Nothing changes during the first attempt of a
    delivery. Raises SubscriptionNotFound, AlreadyClaimed, NoPendingWork, Busy."""

    def step() -> SubscriptionRecord:
        record = activate(stores, lifecycle.require_notifying(stores, subscription_id))
        delivery = record.delivery
        if state.phase(delivery) in {"claimed", "leased"}:
            state.check_unclaimed(replace(delivery, holder=delivery.holder or "webhook"), stores.clock_ms())
        if state.phase(delivery) == "delivering":
            return record
        if not pending.find_pending(stores, record, limit=1) and not pending.mark_what_is_pending(
            stores, record
        ):
            raise NoPendingWork
        return commit(stores, record, new_delivery(stores, record))

    return until_committed(stores, step)


def _decide_acks(stores: Stores, record: SubscriptionRecord, acks: Mapping[str, str]) -> list[Write]:
    """Check the acks against the current links and tails, and return their writes. Raises InvalidAck."""

    def decide(ack: tuple[str, str]) -> Write:
        path, token = ack
        link = storage.load_link(stores.table, record.incarnation, path)
        head = pending.find_head(stores, path)
        if link is None or head is None or link.stream_incarnation != head.record.incarnation:
            raise InvalidAck(
                f"Ack of {path[:80]!r}: the subscription follows no such stream, or it was created anew since"
                " the delivery; ack the others, and the next delivery names it"
            )
        return storage.ack_link(
            link, state.decide_ack(token, link.acked, head.tail.offset), link.stream_incarnation
        )

    return stores.concurrency.each(decide, list(acks.items()))


def finish(
    stores: Stores, record: SubscriptionRecord, streams: Sequence[PendingStream], ended: DeliveryState
) -> None:
    """Ack the streams that the delivery named, and end the delivery (§7.1): a webhook has answered
    `{"done": true}`, or the delivery is given up. A link that was changed or removed meanwhile stays so.
    Raises SubscriptionChanged."""
    acks = [
        storage.ack_link(stream.link, stream.tail, stream.stream_incarnation)
        for stream in streams
        if storage.load_link(stores.table, record.incarnation, stream.link.path) == stream.link
    ]
    idle = commit(stores, record, ended, acks)
    if state.due_ms(ended) is None:
        begin_if_pending(stores, idle)


def make_token(record: SubscriptionRecord, now_ms: int) -> str:
    claims = {
        "sub": record.subscription_id,
        "gen": record.delivery.generation,
        "exp": now_ms // 1000 + TOKEN_SECONDS,
    }
    return jwt.encode(claims, record.secret, _ALGORITHM)


def token_generation(record: SubscriptionRecord, token: str | None, now_ms: int) -> int:
    """Verify the token and return its generation. Raises DeliveryTokenInvalid."""
    if token is None:
        raise DeliveryTokenInvalid("Authorization must be: Bearer <the wake's token>")
    try:
        claims = jwt.decode(
            token,
            record.secret,
            algorithms=[_ALGORITHM],
            # The time is an argument, so that tests can set it.
            options={"verify_exp": False, "require": ["exp", "sub", "gen"]},
        )
    except (jwt.PyJWTError, ValueError):
        raise DeliveryTokenInvalid("The token is not one of this subscription") from None
    if claims["sub"] != record.subscription_id or type(claims["gen"]) is not int:
        raise DeliveryTokenInvalid("The token is not one of this subscription")
    if type(claims["exp"]) is not int or claims["exp"] * 1000 < now_ms:
        raise DeliveryTokenInvalid("The token has expired", expired=True)
    return int(claims["gen"])

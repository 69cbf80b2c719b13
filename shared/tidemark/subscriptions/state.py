"""The deliveries of a subscription (§7): one at a time, fenced by generation and wake id.

    idle ──begin──▶ in flight ──delivered──▶ leased ──done, release──▶ idle
                      │  ▲                     │
                      └──┘ failed: retry       └─ lease over: begin again, one generation higher

| state     | wake id | next attempt | holder  | next                                                |
| --------- | ------- | ------------ | ------- | --------------------------------------------------- |
| idle      | none    | –            | –       | a stream with something new begins a delivery       |
| in flight | set     | set          | none    | the webhook is called, or the wake event is written |
| leased    | set     | none         | webhook | callback, or the end of the lease                   |
| announced | set     | none         | none    | a worker claims it (pull-wake; without a lease)     |
| claimed   | set     | none         | worker  | ack, release, or the end of the lease               |

Every function returns the next state. The caller commits the state with one conditional write, so only one
of two transitions from the same state happens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Literal

from tidemark.protocol.errors import AlreadyClaimed, DeliveryFenced, InvalidAck
from tidemark.protocol.offset import parse_token, render_offset
from tidemark.subscriptions.configuration import SubscriptionKind

FIRST_RETRY_MS: Final = 1_000
MAX_RETRY_MS: Final = 60_000
JITTER: Final = 0.2


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """`next_attempt_ms` is set while a webhook call or a wake event is due, and in the pause after a delivery
    was given up. While an attempt is under way, `next_attempt_ms` is its deadline. `delivered_ms` is when the
    last delivery arrived: a webhook accepted it, its event was written, or a worker claimed it. `slow`: the
    webhook took longer than the timeout of a first attempt. Slow webhooks are called in slots of their own
    until they are quick again."""

    generation: int = 0
    wake_id: str | None = None
    holder: str | None = None
    lease_until_ms: int | None = None
    next_attempt_ms: int | None = None
    attempts: int = 0
    failed: bool = False
    delivered_ms: int | None = None
    slow: bool = False

    def is_same(self, other: DeliveryState) -> bool:
        return (self.generation, self.wake_id) == (other.generation, other.wake_id)


DeliveryPhase = Literal["idle", "delivering", "retrying", "leased", "announced", "claimed"]
"""The states of the table above, as the API names them. Retrying: the last attempt failed, and another one
follows. Leased: the webhook accepted the delivery, and calls back later."""


def phase(state: DeliveryState) -> DeliveryPhase:
    if state.wake_id is None:
        return "idle"
    if state.next_attempt_ms is not None:
        return "retrying" if state.failed else "delivering"
    if state.holder is not None:
        return "claimed"
    return "announced" if state.lease_until_ms is None else "leased"


class Step(Enum):
    """The next step for a subscription, decided by its state and the clock alone."""

    #: Nothing is in flight: begin a delivery if a stream has something new.
    LOOK = "look"
    #: Call the webhook, or write the wake event.
    DELIVER = "deliver"
    #: The lease is over: begin another delivery if a stream still has something new.
    EXPIRE = "expire"
    #: Nothing to do before `due_ms`, or ever if that is None.
    WAIT = "wait"


def next_step(state: DeliveryState, now_ms: int) -> Step:
    deadline_ms = due_ms(state)
    if state.wake_id is None:
        return Step.WAIT if deadline_ms is not None and now_ms < deadline_ms else Step.LOOK
    if deadline_ms is None or now_ms < deadline_ms:
        return Step.WAIT
    lease_is_over = state.lease_until_ms is not None and now_ms >= state.lease_until_ms
    # A retry after the lease gets a new generation: the receiver of an earlier attempt may still work.
    return Step.EXPIRE if lease_is_over else Step.DELIVER


def due_ms(state: DeliveryState) -> int | None:
    """When the next step is due if no event comes before."""
    return state.next_attempt_ms if state.next_attempt_ms is not None else state.lease_until_ms


def begin_delivery(
    state: DeliveryState, kind: SubscriptionKind, wake_id: str, now_ms: int, lease_ttl_ms: int
) -> DeliveryState:
    """A delivery of a new generation. A webhook's lease begins here (§7.3). The count of failed attempts goes
    on, so that the back-off grows while a receiver is down or waits for a slot."""
    is_webhook = kind is SubscriptionKind.WEBHOOK
    return DeliveryState(
        generation=state.generation + 1,
        wake_id=wake_id,
        lease_until_ms=now_ms + lease_ttl_ms if is_webhook else None,
        next_attempt_ms=now_ms,
        attempts=attempts_in_vain(state),
        failed=state.failed,
        delivered_ms=state.delivered_ms,
        slow=state.slow,
    )


def start_attempt(state: DeliveryState, now_ms: int, lost_after_ms: int, lease_ttl_ms: int) -> DeliveryState:
    """The state during an attempt. If the worker dies, the attempt counts as lost after `lost_after_ms`."""
    lease = None if state.lease_until_ms is None else now_ms + lease_ttl_ms
    return replace(
        state, attempts=state.attempts + 1, next_attempt_ms=now_ms + lost_after_ms, lease_until_ms=lease
    )


class DeliveryFailure(Enum):
    """How an attempt failed, and so whether the receiver may still be working."""

    #: The receiver refused the request or was not reached. The next attempt has the same generation.
    REFUSED = "refused"
    #: The receiver dropped the connection after the request. The next attempt waits for the back-off alone
    #: (§7.1); a new generation fences the receiver's late work.
    DROPPED = "dropped"
    #: The receiver did not answer in time, may be working, and keeps its lease. An earlier retry would fence
    #: a receiver that always needs longer, so its work would never count.
    SILENT = "silent"


def attempt_failed(
    state: DeliveryState, now_ms: int, chance: float, failure: DeliveryFailure
) -> DeliveryState:
    """Schedule a retry. If the receiver may have got the request, its lease ends when the retry is due, so
    the retry begins a new generation."""
    next_attempt_ms, lease_until_ms = now_ms + retry_delay_ms(state.attempts, chance), state.lease_until_ms
    if lease_until_ms is not None and failure is DeliveryFailure.SILENT:
        next_attempt_ms = max(next_attempt_ms, lease_until_ms)
    elif lease_until_ms is not None and failure is DeliveryFailure.DROPPED:
        lease_until_ms = next_attempt_ms
    return replace(state, failed=True, next_attempt_ms=next_attempt_ms, lease_until_ms=lease_until_ms)


def attempt_abandoned(state: DeliveryState, now_ms: int) -> DeliveryState:
    """The webhook exceeded the short timeout of a first attempt. The next call is due at once, with the full
    timeout and a new generation, which fences the first call."""
    return replace(state, failed=True, slow=True, next_attempt_ms=now_ms, lease_until_ms=now_ms)


def attempt_deferred(state: DeliveryState, now_ms: int, chance: float) -> DeliveryState:
    """All slots for slow webhooks are taken: retry with exponential back-off."""
    attempts = state.attempts + 1
    return replace(
        state, slow=True, attempts=attempts, next_attempt_ms=now_ms + retry_delay_ms(attempts, chance)
    )


def attempt_succeeded(state: DeliveryState, now_ms: int) -> DeliveryState:
    """The delivery has arrived. If that was known already, `delivered_ms` stays."""
    delivered_ms = state.delivered_ms if state.next_attempt_ms is None else now_ms
    return replace(state, failed=False, attempts=0, next_attempt_ms=None, delivered_ms=delivered_ms)


def retry_delay_ms(attempts: int, chance: float) -> int:
    """Exponential back-off: from 1 s up to 60 s, doubled each time, ±20 %; `chance` is from 0 to 1."""
    base: int = min(FIRST_RETRY_MS << min(max(attempts - 1, 0), 16), MAX_RETRY_MS)
    return round(base * (1 + JITTER * (2 * chance - 1)))


def check_unclaimed(state: DeliveryState, now_ms: int) -> None:
    """Raises AlreadyClaimed while another worker has the lease (§7.2)."""
    has_lease = state.lease_until_ms is not None and now_ms < state.lease_until_ms
    if state.holder is not None and has_lease:
        raise AlreadyClaimed(state.holder, state.generation)


def claim_delivery(
    state: DeliveryState, worker: str, wake_id: str, now_ms: int, lease_ttl_ms: int
) -> DeliveryState:
    """A worker claims the open delivery. If no delivery is open, or the lease of its last holder is over, a
    new generation begins. A wake event that is not written yet is no longer needed."""
    is_free = state.wake_id is not None and state.holder is None
    return DeliveryState(
        generation=state.generation if is_free else state.generation + 1,
        wake_id=state.wake_id if is_free else wake_id,
        holder=worker,
        lease_until_ms=now_ms + lease_ttl_ms,
        attempts=attempts_in_vain(state),
        delivered_ms=now_ms,
    )


def attempts_in_vain(state: DeliveryState) -> int:
    """The failed attempts when a lease ends: one more if a worker held the lease."""
    return state.attempts + (state.holder is not None)


def check_fence(state: DeliveryState, token_generation: int, generation: int, wake_id: str) -> None:
    """Raises DeliveryFenced unless token and request belong to the current delivery (§7.3)."""
    if not token_generation == generation == state.generation or wake_id != state.wake_id:
        raise DeliveryFenced


def extend_lease(state: DeliveryState, now_ms: int, lease_ttl_ms: int) -> DeliveryState:
    """Apply a callback or ack without `done`, which proves that the delivery has arrived."""
    return replace(attempt_succeeded(state, now_ms), lease_until_ms=now_ms + lease_ttl_ms)


def end_delivery(state: DeliveryState) -> DeliveryState:
    """The delivery is done or released: later requests for this delivery are fenced."""
    return DeliveryState(generation=state.generation, delivered_ms=state.delivered_ms, slow=state.slow)


def give_up(state: DeliveryState, now_ms: int) -> DeliveryState:
    """End the delivery with a pause: subscriptions that follow each other's dead letters cannot spin."""
    return replace(end_delivery(state), next_attempt_ms=now_ms + FIRST_RETRY_MS)


def decide_ack(token: str, acked: int, tail: int) -> int:
    """Return the offset up to which the stream is processed, inclusive. Raises InvalidAck (§7)."""
    offset = parse_token(token)
    if offset is None:
        raise InvalidAck(f"Ack offset {token[:40]!r} is not a stream offset")
    if offset < acked:
        raise InvalidAck(f"Ack offset {token} lies before the acked offset, {render_offset(acked)}")
    if offset > tail:
        raise InvalidAck(f"Ack offset {token} lies beyond the stream's tail, {render_offset(tail)}")
    return offset

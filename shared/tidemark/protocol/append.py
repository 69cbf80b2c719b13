"""Rules for appends (§5.2, §5.2.1, §5.3): a single one, or a group that shares one write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tidemark.protocol.caching import IfMatch
from tidemark.protocol.errors import AppendAfterClose, ProtocolError, StaleEpoch
from tidemark.protocol.messages import NOTHING, Messages
from tidemark.protocol.producer import Claim, ProducerState, check_producer, check_stream_seq, is_duplicate
from tidemark.protocol.tail import Tail, most_pushed_out, remember, room_for


@dataclass(slots=True, unsafe_hash=True)
class Append:
    """One append as a writer requested it. Never changed, but not frozen, for the same reason as `Tail`.

    `fault` is the error in the body. It is found before the stream's state is known, and the closed state
    takes precedence over it (§5.2, error precedence).
    """

    messages: Messages = NOTHING
    close: bool = False
    stream_seq: str | None = None
    claim: Claim | None = None
    fault: ProtocolError | None = None
    incarnation: str = ""
    if_match: IfMatch | None = None


class Kind(Enum):
    APPENDED = "appended"
    DUPLICATE = "duplicate"
    ALREADY_CLOSED = "already closed"


class Outcome(NamedTuple):
    """The outcome of an append: the offset after it, the producer's latest (epoch, seq), and the
    incarnation."""

    kind: Kind
    next_offset: int
    closed: bool
    producer: ProducerState | None = None
    incarnation: str = ""


@dataclass(slots=True)
class AppendPlan:
    """The decision for a group: a result for each append, in order, and the one batch that commits them.

    The results hold only if no other write came in between. This is proven when the batch was written right
    after `before`, or, if there is nothing to write, when `before` was read afresh.
    """

    before: Tail
    after: Tail
    looked_up: Mapping[str, ProducerState | None] = field(default_factory=dict)
    #: The number of producers in the group.
    producers: int = 0
    results: list[Outcome | ProtocolError] = field(default_factory=list)
    accepted: list[Messages] = field(default_factory=list)
    pushed_out: dict[str, ProducerState] = field(default_factory=dict)
    writes: bool = False

    @property
    def size(self) -> int:
        return self.after.offset - self.before.offset

    def body(self) -> tuple[bytes, tuple[int, ...], tuple[int, ...]]:
        """Return the bytes of the batch, the length of each message, and the messages of each append."""
        data = b"".join([messages.data for messages in self.accepted])
        lengths = tuple([length for messages in self.accepted for length in messages.lengths])
        return data, lengths, tuple([len(each.lengths) for each in self.accepted if each.lengths])


def unknown_producers(tail: Tail, appends: Sequence[Append]) -> set[str]:
    """Return the producers whose state must be looked up before `plan_appends` can decide."""
    if not tail.overflowed:
        return set()
    ids = {append.claim.producer_id for append in appends if append.claim}
    return {producer_id for producer_id in ids if tail.producer(producer_id) is None}


def plan_appends(
    tail: Tail, appends: Sequence[Append], looked_up: Mapping[str, ProducerState | None]
) -> AppendPlan:
    """Decide each append in order, as if alone. `looked_up` holds the states of `unknown_producers`."""
    producers = {append.claim.producer_id for append in appends if append.claim}
    plan = AppendPlan(before=tail, after=tail, looked_up=looked_up, producers=len(producers))
    for append in appends:
        try:
            outcome = _decide_append(plan, append, looked_up)
        except ProtocolError as refusal:
            plan.results.append(refusal.without_frames())
        else:
            plan.results.append(outcome)
    return plan


def _decide_append(
    plan: AppendPlan, append: Append, looked_up: Mapping[str, ProducerState | None]
) -> Outcome:
    tail, claim = plan.after, append.claim
    state = None
    if claim is not None:
        recent = tail.producer(claim.producer_id) or plan.pushed_out.get(claim.producer_id)
        state = recent or looked_up.get(claim.producer_id)
    if tail.closed:
        return _decide_on_closed(tail, append, state)
    if append.fault is not None:
        raise append.fault
    if claim is not None:
        check_producer(state, claim)
        if is_duplicate(state, claim):
            return _duplicate(tail, append, state)
    if append.if_match is not None:
        append.if_match.check(append.incarnation, tail.offset, closed=tail.closed)
    if append.stream_seq is not None:
        check_stream_seq(tail.stream_seq, append.stream_seq)
    is_back = state is not None and claim is not None and tail.producer(claim.producer_id) is None
    return _accept(plan, append, is_back=is_back)


def _decide_on_closed(tail: Tail, append: Append, state: ProducerState | None) -> Outcome:
    """Decide on a closed stream (§5.2.1): only the request that closed it may be repeated."""
    claim = append.claim
    if claim is None:
        if append.close and not append.messages.lengths and append.fault is None:
            return Outcome(Kind.ALREADY_CLOSED, tail.offset, closed=True, incarnation=append.incarnation)
        raise AppendAfterClose(tail.offset)
    if claim == tail.closed_by:
        return _duplicate(tail, append, state)
    if state is not None and claim.epoch < state.epoch:
        raise StaleEpoch(state.epoch)
    raise AppendAfterClose(tail.offset)


def _duplicate(tail: Tail, append: Append, state: ProducerState | None) -> Outcome:
    """Answer a retry: the offset after the original if it was the producer's last append, else the tail."""
    known = state is not None and append.claim is not None and state.seq == append.claim.seq
    next_offset = state.end if state is not None and known else tail.offset
    return Outcome(Kind.DUPLICATE, next_offset, tail.closed, state, append.incarnation)


def _accept(plan: AppendPlan, append: Append, *, is_back: bool) -> Outcome:
    tail, claim = plan.after, append.claim
    end = tail.offset + append.messages.size
    producer = ProducerState(claim.producer_id, claim.epoch, claim.seq, end) if claim else None
    producers, pushed_out = tail.producers, tuple[ProducerState, ...]()
    if producer is not None:
        room = room_for(tail.producers, producer, is_back=is_back, at_once=plan.producers)
        most_out = most_pushed_out(len(tail.producers)) - len(plan.pushed_out)
        producers, pushed_out = remember(tail.producers, producer, room, most_out)
        plan.pushed_out.pop(producer.producer_id, None)
        plan.pushed_out.update((state.producer_id, state) for state in pushed_out)
    plan.after = Tail(
        offset=end,
        closed=append.close,
        stream_seq=append.stream_seq if append.stream_seq is not None else tail.stream_seq,
        producers=producers,
        overflowed=tail.overflowed or bool(pushed_out),
        closed_by=claim if append.close else None,
    )
    plan.accepted.append(append.messages)
    plan.writes = True
    return Outcome(Kind.APPENDED, end, append.close, producer, append.incarnation)

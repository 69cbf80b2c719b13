"""Deciding about appends, against a model of §5.2 and §5.2.1 that has memory without end; and which producers
a batch carries."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.protocol import errors, tail
from tidemark.protocol.append import Append, AppendPlan, Kind, Outcome, plan_appends, unknown_producers
from tidemark.protocol.messages import NOTHING, Messages
from tidemark.protocol.producer import MAX_ID_LENGTH, Claim, ProducerState
from tidemark.protocol.tail import (
    MOST_PRODUCERS,
    RECENT_PRODUCERS,
    RECENT_PRODUCERS_BYTES,
    Tail,
    remember,
    room_for,
)

Answer = tuple[object, ...]
"""What a client can tell: the kind of answer, and the numbers in its headers."""


def data(size: int) -> Messages:
    return Messages(b"x" * size, (size,)) if size else NOTHING


# --- the model ----------------------------------------------------------------------


@dataclass
class Model:
    """A stream as the specification describes it: every producer is remembered for ever."""

    offset: int = 0
    closed: bool = False
    closed_by: Claim | None = None
    stream_seq: str | None = None
    producers: dict[str, ProducerState] = field(default_factory=dict)

    def apply(self, append: Append) -> Answer:
        if self.closed:
            return self._apply_to_closed(append)
        if append.fault is not None:
            return (type(append.fault),)
        if append.claim is not None:
            refused = self._validate(append.claim)
            if refused is not None:
                return refused
        if self._regresses(append.stream_seq):
            return (errors.SequenceRegression,)
        return self._accept(append)

    def _apply_to_closed(self, append: Append) -> Answer:
        """The very request that closed it, or closing without a body and a name: success."""
        claim = append.claim
        if claim is None and append.close and not append.messages.data and append.fault is None:
            return (Kind.ALREADY_CLOSED, self.offset, True)
        if claim is not None and claim == self.closed_by:
            return (Kind.DUPLICATE, self.offset, True, claim.epoch, claim.seq)
        state = self.producers.get(claim.producer_id) if claim else None
        if claim is not None and state is not None and claim.epoch < state.epoch:
            return (errors.StaleEpoch, state.epoch)
        return (errors.AppendAfterClose, self.offset)

    def _validate(self, claim: Claim) -> Answer | None:
        """The pseudo code of §5.2.1, line by line."""
        state = self.producers.get(claim.producer_id)
        if state is None:
            return (errors.SequenceGap, 0, claim.seq) if claim.seq else None
        if claim.epoch < state.epoch:
            return (errors.StaleEpoch, state.epoch)
        if claim.epoch > state.epoch:
            return (errors.Malformed,) if claim.seq else None
        if claim.seq <= state.seq:
            end = state.end if claim.seq == state.seq else self.offset
            return (Kind.DUPLICATE, end, self.closed, state.epoch, state.seq)
        if claim.seq > state.seq + 1:
            return (errors.SequenceGap, state.seq + 1, claim.seq)
        return None

    def _regresses(self, received: str | None) -> bool:
        return received is not None and self.stream_seq is not None and received <= self.stream_seq

    def _accept(self, append: Append) -> Answer:
        self.offset += len(append.messages.data)
        self.stream_seq = append.stream_seq or self.stream_seq
        if append.close:
            self.closed, self.closed_by = True, append.claim
        claim = append.claim
        if claim is None:
            return (Kind.APPENDED, self.offset, self.closed)
        name = claim.producer_id
        self.producers[name] = ProducerState(name, claim.epoch, claim.seq, self.offset)
        return (Kind.APPENDED, self.offset, self.closed, claim.epoch, claim.seq)


# --- the rules, with the storage they ask for ---------------------------------------


@dataclass
class Stream:
    """A tail, and the items of the producers it no longer carries."""

    tail: Tail = field(default_factory=Tail)
    items: dict[str, ProducerState] = field(default_factory=dict)
    stored: bytes = b""
    lengths: tuple[int, ...] = ()

    def states(self) -> dict[str, ProducerState]:
        return self.items | {state.producer_id: state for state in self.tail.producers}

    def apply(self, group: list[Append]) -> list[Answer]:
        unknown = unknown_producers(self.tail, group)
        plan = plan_appends(self.tail, group, {name: self.items.get(name) for name in unknown})
        check_plan(plan, group)
        if plan.writes:
            self.tail = plan.after
            self.items.update(plan.pushed_out)
            data, lengths, _ = plan.body()
            self.stored += data
            self.lengths += lengths
        return [answer_of(answer) for answer in plan.results]


def check_plan(plan: AppendPlan, group: list[Append]) -> None:
    """What storage relies on."""
    assert len(plan.results) == len(group)
    accepted = [a for a in plan.results if isinstance(a, Outcome) and a.kind is Kind.APPENDED]
    assert plan.writes == bool(accepted)
    assert plan.writes or plan.after == plan.before, "what is not written changes nothing"
    data, lengths, _ = plan.body()
    assert plan.after.offset - plan.before.offset == len(data) == sum(lengths)
    carried = {state.producer_id for state in plan.after.producers}
    assert not carried & plan.pushed_out.keys(), "a producer's state is in one place"
    assert plan.after.overflowed or not plan.pushed_out


def answer_of(answer: Outcome | errors.ProtocolError) -> Answer:
    if isinstance(answer, Outcome):
        producer = (answer.producer.epoch, answer.producer.seq) if answer.producer else ()
        return (answer.kind, answer.next_offset, answer.closed, *producer)
    numbers = [int(value) for value in answer.headers.values() if value != "true"]
    return (type(answer), *numbers)


# --- random histories ---------------------------------------------------------------

#: More of them than a batch carries, some so long that few fit.
producer_ids = st.sampled_from([*(f"p{n}" for n in range(14)), "x" * 200, "y" * 250, "z" * 256])
bodies = st.integers(min_value=1, max_value=9).map(data)
faults = st.sampled_from([errors.Malformed("bad body"), errors.ContentTypeMismatch("a/b", "c/d")])
stream_seqs = st.sampled_from([None, None, *"0123456789abcdef"])
#: What a producer may do: mostly go on, or repeat itself.
moves = st.sampled_from(["next"] * 6 + ["again", "older", "gap", "new epoch", "new epoch, late", "stale"])


def claim_for(move: str, producer_id: str, state: ProducerState | None) -> Claim:
    """The claim that this move makes of a producer who is where `state` says."""
    epoch, seq = (state.epoch, state.seq) if state else (0, -1)
    numbers = {
        "next": (epoch, seq + 1),
        "again": (epoch, max(seq, 0)),
        "older": (epoch, max(seq - 1, 0)),
        "gap": (epoch, seq + 2),
        "new epoch": (epoch + 1, 0),
        "new epoch, late": (epoch + 1, 1),
        "stale": (max(epoch - 1, 0), seq + 1),
    }
    return Claim(producer_id, *numbers[move])


@st.composite
def histories(draw: st.DrawFn) -> list[Append]:
    """A life in which most appends are accepted, perhaps its end, and what comes too late."""
    model, history = Model(), list[Append]()

    def happen(append: Append) -> None:
        history.append(append)
        model.apply(append)

    def draw_claim() -> Claim:
        producer_id = draw(producer_ids)
        return claim_for(draw(moves), producer_id, model.producers.get(producer_id))

    for kind in draw(st.lists(st.sampled_from("pppppasf"), max_size=50)):
        claim = draw_claim() if kind == "p" or draw(st.booleans()) else None
        if kind == "f":
            happen(Append(fault=draw(faults), close=draw(st.booleans()), claim=claim))
        else:
            seq = draw(stream_seqs) if kind == "s" else None
            happen(Append(draw(bodies), stream_seq=seq, claim=claim))
    for kind in draw(st.sampled_from(["", "c", "ca", "cc", "cpcfr", "crcrp", "ccrp"])):
        claim = draw_claim() if kind == "p" or draw(st.booleans()) else None
        if kind == "c":
            happen(Append(draw(st.one_of(st.just(NOTHING), bodies)), close=True, claim=claim))
        elif kind == "r":
            happen(Append(draw(bodies), close=True, claim=model.closed_by))
        elif kind == "f":
            happen(Append(fault=draw(faults), close=draw(st.booleans()), claim=claim))
        else:
            happen(Append(draw(bodies), claim=claim))
    return history


@settings(max_examples=3 * settings().max_examples // 2)
@given(histories())
def test_appends_one_by_one_behave_as_with_an_unbounded_memory_of_producers(history: list[Append]) -> None:
    model, stream = Model(), Stream()
    for append in history:
        before = stream.tail
        assert stream.apply([append]) == [model.apply(append)]
        assert not before.closed or stream.tail == before, "a closed stream never changes"
    assert (stream.tail.offset, stream.tail.closed) == (model.offset, model.closed)
    assert len(stream.stored) == sum(stream.lengths) == model.offset


@settings(max_examples=3 * settings().max_examples // 2)
@given(histories(), st.data())
def test_a_group_of_appends_is_answered_as_one_by_one(history: list[Append], cuts: st.DataObject) -> None:
    alone, together = Stream(), Stream()
    rest = history
    while rest:
        size = cuts.draw(st.integers(min_value=1, max_value=len(rest)))
        group, rest = rest[:size], rest[size:]
        expected = [answer for append in group for answer in alone.apply([append])]
        assert together.apply(group) == expected
        # A group of many producers carries more of them.
        assert replace(together.tail, producers=(), overflowed=False) == replace(
            alone.tail, producers=(), overflowed=False
        )
        assert together.states() == alone.states()
        assert (together.stored, together.lengths) == (alone.stored, alone.lengths)


# --- single rules, told one by one --------------------------------------------------

BODY = data(3)
MALFORMED, MISMATCH = errors.Malformed("bad"), errors.ContentTypeMismatch("a/b", "c/d")
CLOSED = Tail(5, closed=True, stream_seq="9")
CLOSED_BY_P = Tail(9, closed=True, producers=(ProducerState("p", 0, 3, 9),), closed_by=Claim("p", 0, 3))
BUSY = Tail(50, stream_seq="7", producers=(ProducerState("p", 2, 8, 40),))


@pytest.mark.parametrize(
    ("tail", "append", "answer"),
    [
        # §5.2: a closed stream refuses an append before any other error.
        (CLOSED, Append(BODY, stream_seq="0"), (errors.AppendAfterClose, 5)),
        (CLOSED, Append(BODY, close=True), (errors.AppendAfterClose, 5)),
        (CLOSED, Append(fault=MALFORMED), (errors.AppendAfterClose, 5)),
        (CLOSED, Append(close=True, fault=MISMATCH), (errors.AppendAfterClose, 5)),
        (CLOSED, Append(BODY, claim=Claim("new", 0, 7)), (errors.AppendAfterClose, 5)),
        (CLOSED, Append(close=True, claim=Claim("new", 0, 0)), (errors.AppendAfterClose, 5)),
        # Only the very request that closed it is a duplicate, whatever its body.
        (CLOSED_BY_P, Append(close=True, claim=Claim("p", 0, 3)), (Kind.DUPLICATE, 9, True, 0, 3)),
        (CLOSED_BY_P, Append(BODY, close=True, claim=Claim("p", 0, 3)), (Kind.DUPLICATE, 9, True, 0, 3)),
        (CLOSED_BY_P, Append(BODY, close=True, claim=Claim("p", 0, 4)), (errors.AppendAfterClose, 9)),
        (CLOSED_BY_P, Append(BODY, close=True, claim=Claim("q", 0, 3)), (errors.AppendAfterClose, 9)),
        (CLOSED_BY_P, Append(BODY, claim=Claim("p", 0, 2)), (errors.AppendAfterClose, 9)),
        # The content type is wrong before the sequence is.
        (BUSY, Append(stream_seq="0", claim=Claim("p", 0, 9), fault=MISMATCH), (errors.ContentTypeMismatch,)),
        # A retry is recognised before its Stream-Seq is refused: a producer that sends both repeats both.
        (BUSY, Append(BODY, stream_seq="7", claim=Claim("p", 2, 8)), (Kind.DUPLICATE, 40, False, 2, 8)),
        # §5.2.1: Producer-Seq is the highest accepted, so that a client can recover its place.
        (BUSY, Append(BODY, claim=Claim("p", 2, 3)), (Kind.DUPLICATE, 50, False, 2, 8)),
        # Its sequence is used up: a close that repeats it does not close.
        (BUSY, Append(close=True, claim=Claim("p", 2, 8)), (Kind.DUPLICATE, 40, False, 2, 8)),
        (BUSY, Append(BODY, stream_seq="7", claim=Claim("p", 2, 9)), (errors.SequenceRegression,)),
    ],
)
def test_an_append_gets_the_first_answer_that_applies(tail: Tail, append: Append, answer: Answer) -> None:
    plan = plan_appends(tail, [append], {})
    assert answer_of(plan.results[0]) == answer
    assert (plan.after, plan.writes) == (tail, False), "what is not accepted changes nothing"


@pytest.mark.parametrize(
    ("tail", "append", "state"),
    [
        (Tail(5), Append(close=True, claim=Claim("p", 0, 0)), ProducerState("p", 0, 0, 5)),
        # A new epoch begins at 0 again, though the sequence was higher.
        (BUSY, Append(BODY, claim=Claim("p", 3, 0)), ProducerState("p", 3, 0, 53)),
    ],
)
def test_an_accepted_append_advances_its_producer(tail: Tail, append: Append, state: ProducerState) -> None:
    plan = plan_appends(tail, [append], {})
    assert (plan.after.producers, plan.writes) == ((state,), True)
    assert plan.after.closed_by == (append.claim if append.close else None)
    assert plan.body()[0] == append.messages.data


def test_only_a_producer_that_may_have_been_pushed_out_is_looked_up() -> None:
    """The usual stream, with few producers, costs one write and no read."""
    tail = Tail(9, overflowed=True, producers=(ProducerState("p", 0, 0, 9),))
    group = [Append(BODY, claim=Claim("gone", 1, 4)), Append(BODY, claim=Claim("p", 0, 1)), Append(BODY)]
    assert unknown_producers(tail, group) == {"gone"}
    assert unknown_producers(Tail(9), group) == set()
    plan = plan_appends(tail, group[:1], {"gone": ProducerState("gone", 1, 4, 6)})
    assert answer_of(plan.results[0]) == (Kind.DUPLICATE, 6, False, 1, 4)


def test_a_producer_that_comes_back_is_carried_beside_the_others_and_a_new_one_in_the_place_of_one() -> None:
    crowd = tuple(ProducerState(f"p{n}", 0, 0, 9) for n in range(RECENT_PRODUCERS))
    for state, carried in ((ProducerState("q", 1, 4, 6), RECENT_PRODUCERS + 1), (None, RECENT_PRODUCERS)):
        append = Append(BODY, claim=Claim("q", 1, 5 if state else 0))
        plan = plan_appends(Tail(9, overflowed=True, producers=crowd), [append], {"q": state})
        assert len(plan.after.producers) == carried


def test_a_producer_pushed_out_and_back_in_a_group_keeps_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has written the pushed-out state yet, so nobody can look it up: the plan itself knows."""
    monkeypatch.setattr(tail, "MOST_PRODUCERS", RECENT_PRODUCERS)
    crowd = [Append(BODY, claim=Claim(f"p{n}", 0, 0)) for n in range(RECENT_PRODUCERS + 2)]
    back = [Append(BODY, claim=Claim("p0", 0, seq)) for seq in (0, 1, 1)]
    stream = Stream()
    answers = stream.apply([*crowd, *back])
    assert [answer[0] for answer in answers[-3:]] == [Kind.DUPLICATE, Kind.APPENDED, Kind.DUPLICATE]
    assert stream.items.keys() == {"p1", "p2"}, "p0 is carried again, and needs no item"


# --- which producers a batch carries ------------------------------------------------------

ids = st.one_of(
    st.sampled_from([f"p{n}" for n in range(12)]),
    st.sampled_from([str(n) * 100 for n in range(6)]),
    st.sampled_from([letter * MAX_ID_LENGTH for letter in "xyz"]),
)


@given(st.lists(ids, max_size=60))
def test_a_batch_carries_few_producers_and_pushes_out_the_longest_silent(writers: list[str]) -> None:
    """It stays within its first kilobyte; the latest is carried whatever it takes. Those carried and those
    pushed out are together the latest state of each, once."""
    carried: tuple[ProducerState, ...] = ()
    own_items: dict[str, ProducerState] = {}
    latest: dict[str, ProducerState] = {}
    for seq, producer_id in enumerate(writers):
        state = latest[producer_id] = ProducerState(producer_id, 0, seq, seq)
        before = {kept.producer_id for kept in carried} | {producer_id}
        carried, pushed_out = remember(carried, state, RECENT_PRODUCERS)
        assert sorted(each.producer_id for each in (*pushed_out, *carried)) == sorted(before)
        own_items.update((pushed.producer_id, pushed) for pushed in pushed_out)
        assert own_items | {kept.producer_id: kept for kept in carried} == latest
        order = [state.seq for state in (*pushed_out, *carried)]
        assert order == sorted(order)
        assert carried[-1] == state
        assert len(carried) <= RECENT_PRODUCERS
        assert sum(len(kept.producer_id) for kept in carried) <= RECENT_PRODUCERS_BYTES


def test_a_producer_is_pushed_out_only_when_there_are_too_many() -> None:
    carried: tuple[ProducerState, ...] = ()
    for n in range(RECENT_PRODUCERS):
        carried, pushed_out = remember(carried, ProducerState(f"p{n}", 0, 0, 0), RECENT_PRODUCERS)
        assert not pushed_out
    again, pushed_out = remember(carried, ProducerState("p0", 0, 1, 9), RECENT_PRODUCERS)
    assert (len(again), pushed_out) == (RECENT_PRODUCERS, ())
    _, pushed_out = remember(again, ProducerState("new", 0, 0, 0), RECENT_PRODUCERS)
    assert [state.producer_id for state in pushed_out] == ["p1"]


def test_no_more_leave_at_once_than_a_transaction_takes() -> None:
    """Ids that are long displace many short ones; what is too much leaves with the next batch."""
    carried = tuple(ProducerState(f"{n:032}", 0, 0, 0) for n in range(MOST_PRODUCERS))
    kept, pushed_out = remember(carried, ProducerState("x" * MAX_ID_LENGTH, 0, 0, 0), MOST_PRODUCERS, 3)
    assert (len(kept), len(pushed_out)) == (MOST_PRODUCERS - 2, 3)
    assert remember(carried, carried[0], 1, 0) == ((*carried[1:], carried[0]), ())


def room(carried: int, written: int, *, seq: int = 1, is_back: bool = False, at_once: int = 1) -> int:
    """For an append of producer number `written`, where the last of so many producers wrote last."""
    producers = [ProducerState(f"p{n}", 0, 0, 0) for n in range(carried)]
    return room_for(producers, ProducerState(f"p{written}", 0, seq, 0), is_back=is_back, at_once=at_once)


def test_room_for_producers_grows_with_those_who_come_back_or_share_a_batch_and_shrinks_again() -> None:
    few, most = RECENT_PRODUCERS, MOST_PRODUCERS
    assert room(few, 100) == few, "a new one alone takes the place of another"
    assert room(few, 100, is_back=True) == few + 1
    assert room(few, 100, at_once=20) == 40
    assert room(60, 100, at_once=20) == 60
    assert room(most, 200, is_back=True) == room(most, 200, at_once=most) == most
    assert room(60, 0, seq=16) == 60, "all of them write"
    assert room(60, 59, seq=15) == 60
    assert room(60, 59, seq=16) == 59, "one of the latest writes again"
    assert room(few, few - 1, seq=16) == few

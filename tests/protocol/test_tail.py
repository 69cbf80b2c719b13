"""Which producers a batch carries, and that none of the others gets lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.producer import MAX_ID_LENGTH, ProducerState
from tidemark.protocol.tail import (
    MOST_PRODUCERS,
    RECENT_PRODUCERS,
    RECENT_PRODUCERS_BYTES,
    remember,
    room_for,
)

ids = st.one_of(
    st.sampled_from([f"p{n}" for n in range(12)]),
    st.sampled_from([str(n) * 100 for n in range(6)]),
    st.sampled_from([letter * MAX_ID_LENGTH for letter in "xyz"]),
)


@given(st.lists(ids, max_size=60))
def test_a_batch_carries_few_producers_and_pushes_out_those_that_were_silent_for_longest(
    writers: list[str],
) -> None:
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

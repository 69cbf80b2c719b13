"""When batches are packed: rules of offsets and times."""

from __future__ import annotations

import pytest

from tidemark.protocol.pack import Packing
from tidemark.protocol.tail import Tail

HOUR_MS = 3_600_000
PACKING = Packing.after_seconds(3600)
KB = 1024


@pytest.mark.parametrize(
    ("start", "end", "due"),
    [
        (0, 100, False),
        (0, 256 * KB - 1, False),
        (256 * KB - 1, 256 * KB, True),
        (256 * KB, 512 * KB - 1, False),
        (10, 10 + 2**30, True),
    ],
)
def test_an_append_that_crosses_a_multiple_of_256_kb_schedules(start: int, end: int, due: bool) -> None:
    assert PACKING.is_due(start, Tail(end)) == due


def test_closing_schedules_where_a_pack_can_pay() -> None:
    """A batch has a byte at least, and a pack takes 64 batches."""
    assert PACKING.is_due(64, Tail(64, closed=True))
    assert not PACKING.is_due(63, Tail(63, closed=True))


@pytest.mark.parametrize(
    ("batches", "data_bytes", "pays"),
    [(1, 2**30, False), (63, 100, False), (64, 100, True), (2, 256 * KB, True), (2, 256 * KB - 1, False)],
)
def test_a_pack_pays_from_64_batches_or_256_kb_on(batches: int, data_bytes: int, pays: bool) -> None:
    assert PACKING.pays(batches, data_bytes) == pays


MB = 1024 * KB


@pytest.mark.parametrize(
    ("new", "before", "taken_in"),
    [
        (MB, 2 * MB, True),
        (MB, 2 * MB + 1, False),
        (4 * MB, 4 * MB - 1, True),
        (4 * MB, 4 * MB, False),
        (8 * MB, 4 * MB - 1, True),
        (9 * MB, 4 * MB - 1, False),
    ],
)
def test_a_pack_takes_in_one_that_is_small_and_not_much_larger(new: int, before: int, taken_in: bool) -> None:
    assert PACKING.takes_in(new, before) == taken_in


def test_the_next_look_is_after_twice_the_time() -> None:
    now_ms, looks = 0, []
    for _ in range(5):
        now_ms = PACKING.next_look_ms(0, now_ms)
        looks.append(now_ms // HOUR_MS)
    assert looks == [1, 2, 4, 8, 16]
    assert [hours for hours in (16, 23, 24, 32) if PACKING.has_waited(0, hours * HOUR_MS)] == [24, 32]


def test_zero_packs_any_two_batches_at_once() -> None:
    packing = Packing.after_seconds(0)
    assert packing.is_due(0, Tail(1))
    assert packing.pays(2, 2)
    assert packing.has_waited(7, 7)

"""Packs, limits to what is kept, and combined appends while a reply of storage is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

import pytest

from tests.faults.cut_cases import (
    Case,
    Scene,
    a_stream,
    appends,
    check_every_reply_cut,
    check_one_cut_reply,
    data_of,
    fork,
    fork_of,
    holds,
    publishes,
    returns,
    snapshot_holds,
)
from tests.faults.test_cut_janitor import advance, due
from tidemark.janitor.sweep import sweep
from tidemark.log.schema import PACK_INDEX, log_pk
from tidemark.protocol.pack import Packing
from tidemark.protocol.retention import Retention
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import _Attempt
from tidemark.service.load import load_head
from tidemark.service.retention import trim_below
from tidemark.service.stores import Stores

_HOUR_MS: Final = 3_600_000
#: Packs of two appends each.
SMALL: Final = Packing(_HOUR_MS, every_bytes=1, pack_bytes=6, min_batches=2, block_bytes=4)
#: All in one, with the packs before.
ALL: Final = Packing(_HOUR_MS, every_bytes=1, min_batches=2, block_bytes=4, keep_replaced_ms=_HOUR_MS)
DATA: Final = b"".join(b"%d; " % number for number in range(5))
CASES: dict[str, Case] = {}


def a_stream_to_pack(stores: Stores, key: StreamKey, **asked: Any) -> None:
    bodies = [DATA[start : start + 3] for start in range(0, len(DATA), 3)]
    a_stream(*bodies, **asked)(replace(stores, packing=SMALL), key)


def a_packed_stream(stores: Stores, key: StreamKey) -> None:
    a_stream_to_pack(stores, key)
    advance(stores, 2)
    packs(SMALL)(stores, key, None)
    assert packs_of(stores, key) == [0, 6]


def packs(packing: Packing) -> Callable[..., None]:
    def act(stores: Stores, _key: StreamKey, _context: Any) -> None:
        sweep(replace(stores, packing=packing))

    return act


def packs_of(stores: Stores, key: StreamKey) -> list[int]:
    items, _ = stores.table.query(log_pk(key, load_head(stores, key).record.incarnation))
    return [int(item["sk"]["S"][:16]) for item in items if PACK_INDEX in item]


def is_packed(*starts: int) -> Callable[..., None]:
    """Whatever was cut: the next round ends what this one has begun."""

    def expect(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
        assert data_of(stores, key) == DATA
        packs(SMALL)(stores, key, None)
        assert packs_of(stores, key) == list(starts)
        assert [data_of(stores, key, start) for start in (0, 4, 9)] == [DATA, DATA[4:], DATA[9:]]

    return expect


def packs_to_merge(stores: Stores, key: StreamKey) -> None:
    a_packed_stream(stores, key)
    stores = replace(stores, packing=ALL)
    append_one = appends(b"5; ")
    append_one(stores, key, None)
    append_one(stores, key, None)


def is_merged(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
    assert data_of(stores, key) == DATA + b"5; 5; "
    packs(ALL)(stores, key, None)
    # Where the object of a pack could not be read to the end, that pack stays, and the new one is made.
    assert packs_of(stores, key) in ([0], [0, 6, 12])
    assert data_of(stores, key) == DATA + b"5; 5; "


CASES["the janitor packs"] = Case(due(a_stream_to_pack), packs(SMALL), is_packed(0, 6), is_slow=True)
CASES["the janitor packs packs"] = Case(due(packs_to_merge), packs(ALL), is_merged, is_slow=True)
CASES["read a pack"] = Case(
    a_packed_stream, lambda stores, key, _: data_of(stores, key), returns(DATA), is_slow=True
)
CASES["read from the middle of a block"] = Case(
    a_packed_stream, lambda stores, key, _: data_of(stores, key, 7), returns(DATA[7:]), is_slow=True
)


def fork_inside(stores: Stores, key: StreamKey, _context: Any) -> None:
    fork(stores, key, 3)


def forked_inside(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
    assert data_of(stores, fork_of(key)) == DATA[:3]
    assert load_head(stores, key).record.references == 1


CASES["fork inside of a pack"] = Case(a_packed_stream, fork_inside, forked_inside, is_slow=True)
CASES["publish inside of a pack"] = Case(
    a_packed_stream, publishes(3, b"<x>"), snapshot_holds(3, b"<x>", DATA[3:]), is_slow=True
)


def a_pack_that_was_let_go_of(stores: Stores, key: StreamKey) -> None:
    a_packed_stream(stores, key)
    trim_below(stores, key, 9)


def is_trimmed(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
    sweep(stores)
    assert data_of(stores, key, 9) == DATA[9:]
    assert packs_of(stores, key) == [6]


CASES["the janitor removes a pack"] = Case(
    due(a_pack_that_was_let_go_of), lambda stores, *_: sweep(stores), is_trimmed, is_slow=True
)


def a_limited_stream(stores: Stores, key: StreamKey) -> None:
    a_stream_to_pack(stores, key, retention=Retention(size=6))


def keeps_its_last_bytes(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
    """The look that was cut is made again, and another one follows."""
    sweep(stores)
    assert load_head(stores, key).record.retained == 9
    assert data_of(stores, key, 9) == DATA[9:]
    appends(b"5; ")(stores, key, None)
    advance(stores, 3)
    sweep(stores)
    assert load_head(stores, key).record.retained == 12


CASES["the janitor looks at a limit"] = Case(
    due(a_limited_stream), lambda stores, *_: sweep(stores), keeps_its_last_bytes, is_slow=True
)


def appends_as_mail(stores: Stores, key: StreamKey, _context: Any) -> Any:
    with patch.object(_Attempt, "combines", lambda *_: True):
        return appends(b"y", claim=("p", 0, 0))(stores, key, None)


CASES["append by way of the mailbox"] = Case(a_stream(b"x"), appends_as_mail, holds(b"xy"), is_slow=True)


@pytest.mark.parametrize("name", CASES)
def test_what_concerns_packs_limits_and_mail_is_right_after_one_cut_reply(
    cut_scene: Scene, name: str
) -> None:
    check_one_cut_reply(cut_scene, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_what_concerns_packs_limits_and_mail_is_right_when_every_reply_is_cut(
    cut_scene: Scene, name: str
) -> None:
    check_every_reply_cut(cut_scene, CASES[name])

"""Forks and deletions while a reply of storage is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.cut_cases import (
    GONE,
    LARGE,
    Case,
    Scene,
    a_fork_at_its_end,
    a_stream,
    check_every_reply_cut,
    check_one_cut_reply,
    data_of,
    fork,
    fork_of,
    is_gone,
    returns,
)
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.stores import Stores

CASES: dict[str, Case] = {}
CASES["delete"] = Case(a_stream(b"x"), lambda stores, key, _: delete(stores, key), is_gone, settled=GONE)
CASES["delete, warm"] = Case(
    a_stream(b"x"), lambda stores, key, _: delete(stores, key), is_gone, settled=GONE, warm=True
)


def forked(expected: bytes) -> Callable[..., None]:
    def expect(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
        assert data_of(stores, fork_of(key)) == expected
        assert data_of(stores, key) == LARGE + b"y"
        assert load_head(stores, key).record.references == 1

    return expect


CASES["fork"] = Case(
    a_stream(LARGE, b"y"), lambda stores, key, _: fork(stores, key, None), forked(LARGE + b"y")
)
CASES["fork inside of a batch"] = Case(
    a_stream(LARGE, b"y"), lambda stores, key, _: fork(stores, key, 0, 10), forked(LARGE[:10])
)
CASES["read a fork"] = Case(
    a_fork_at_its_end, lambda stores, key, _: data_of(stores, fork_of(key)), returns(LARGE + b"y")
)


@pytest.mark.parametrize("name", CASES)
def test_a_fork_or_a_deletion_is_right_after_one_cut_reply(cut_scene: Scene, name: str) -> None:
    check_one_cut_reply(cut_scene, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_fork_or_a_deletion_is_right_when_every_reply_is_cut(cut_scene: Scene, name: str) -> None:
    check_every_reply_cut(cut_scene, CASES[name])

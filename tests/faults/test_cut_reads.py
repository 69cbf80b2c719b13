"""Reads while a reply of storage is cut."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.cut_cases import (
    LARGE,
    Case,
    Scene,
    a_stream,
    check_every_reply_cut,
    check_one_cut_reply,
    data_of,
    fresh,
    returns,
)
from tests.support import append_request
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import append
from tidemark.service.load import load_head
from tidemark.service.read import read, read_on
from tidemark.service.stores import Stores

CASES: dict[str, Case] = {}


def the_rest(stores: Stores, key: StreamKey) -> Any:
    """A reader at the tail, and what has come since."""
    a_stream(b"x")(stores, key)
    reading = read(stores, key, 0)
    append(fresh(stores), key, [append_request(b"news")])
    return reading


CASES["read"] = Case(
    a_stream(b"x", b"y" * 2000, b"z"),
    lambda stores, key, _: data_of(stores, key),
    returns(b"x" + b"y" * 2000 + b"z"),
)
CASES["read large bodies"] = Case(
    a_stream(b"x", LARGE, b"z", LARGE),
    lambda stores, key, _: data_of(stores, key),
    returns(b"x" + LARGE + b"z" + LARGE),
)
CASES["read, warm"] = Case(
    a_stream(b"x", LARGE), lambda stores, key, _: data_of(stores, key), returns(b"x" + LARGE), warm=True
)
CASES["read from the middle of a batch"] = Case(
    a_stream(b"x", b"12345"), lambda stores, key, _: data_of(stores, key, 3), returns(b"345")
)
CASES["look of a long-poll"] = Case(
    the_rest, lambda stores, _, reading: read_on(stores, reading).data, returns(b"news")
)
CASES["read for metadata"] = Case(
    a_stream(b"12345"), lambda stores, key, _: load_head(stores, key).tail.offset, returns(5)
)


@pytest.mark.parametrize("name", CASES)
def test_a_read_is_right_after_one_cut_reply(cut_scene: Scene, name: str) -> None:
    check_one_cut_reply(cut_scene, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_read_is_right_when_every_reply_is_cut(cut_scene: Scene, name: str) -> None:
    check_every_reply_cut(cut_scene, CASES[name])

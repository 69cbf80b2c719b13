"""Creations, appends and closings while a reply of storage is cut."""

from __future__ import annotations

from typing import Final

import pytest

from tests.faults.cut_cases import (
    LARGE,
    Case,
    Scene,
    a_stream,
    appends,
    check_every_reply_cut,
    check_one_cut_reply,
    creates,
    holds,
    nothing,
)
from tests.support import append_request, create_request
from tidemark.protocol.errors import (
    ProtocolError,
)
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import append
from tidemark.service.create import create
from tidemark.service.stores import Stores

CASES: dict[str, Case] = {}


CLAIM: Final = ("p", 0, 0)
CASES["create"] = Case(nothing, creates(), holds(b""))
CASES["create with content"] = Case(nothing, creates(body=b"first"), holds(b"first"))
CASES["create closed"] = Case(nothing, creates(body=b"all", closed=True), holds(b"all", closed=True))
CASES["create with a large body"] = Case(nothing, creates(body=LARGE), holds(LARGE))
CASES["create with a lifetime"] = Case(nothing, creates(expiry=Expiry(ttl_seconds=3600)), holds(b""))
CASES["create what is there"] = Case(a_stream(b"x"), creates(), holds(b"x"))
CASES["append, warm"] = Case(a_stream(b"x"), appends(b"y", claim=CLAIM), holds(b"xy"), warm=True)
CASES["append, cold"] = Case(a_stream(b"x"), appends(b"y", claim=CLAIM), holds(b"xy"))
CASES["append a large body"] = Case(a_stream(b"x"), appends(LARGE, claim=CLAIM), holds(b"x" + LARGE))
CASES["close"] = Case(a_stream(b"x"), appends(b"", close=True), holds(b"x", closed=True))
CASES["append and close"] = Case(
    a_stream(b"x"), appends(b"y", close=True, claim=CLAIM), holds(b"xy", closed=True)
)


def eight_others(stores: Stores, key: StreamKey) -> None:
    requests = [append_request(b"o", claim=(f"other-{number}", 0, 0)) for number in range(8)]
    assert not [answer for answer in append(stores, key, requests) if isinstance(answer, ProtocolError)]


def a_full_batch(stores: Stores, key: StreamKey) -> None:
    create(stores, key, create_request())
    eight_others(stores, key)


def a_producer_pushed_out(stores: Stores, key: StreamKey) -> None:
    create(stores, key, create_request())
    append(stores, key, [append_request(b"mine", claim=CLAIM)])
    eight_others(stores, key)


CASES["append that pushes a producer out"] = Case(
    a_full_batch, appends(b"y", claim=CLAIM), holds(b"o" * 8 + b"y"), warm=True
)
CASES["append repeated by a producer that was pushed out"] = Case(
    a_producer_pushed_out, appends(b"mine", claim=CLAIM), holds(b"mine" + b"o" * 8)
)
CASES["append by a producer that was pushed out"] = Case(
    a_producer_pushed_out, appends(b"more", claim=("p", 0, 1)), holds(b"mine" + b"o" * 8 + b"more")
)


@pytest.mark.parametrize("name", CASES)
def test_a_write_is_right_after_one_cut_reply(cut_scene: Scene, name: str) -> None:
    check_one_cut_reply(cut_scene, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_write_is_right_when_every_reply_is_cut(cut_scene: Scene, name: str) -> None:
    check_every_reply_cut(cut_scene, CASES[name])

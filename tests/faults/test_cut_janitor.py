"""The janitor's runs while a reply of storage is cut."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.faults.cut_cases import (
    LARGE,
    Case,
    Scene,
    a_fork_at_its_end,
    a_snapshot,
    a_stream,
    a_trimmed_stream,
    an_upload,
    check_every_reply_cut,
    check_one_cut_reply,
    data_of,
    fork_of,
    holds,
    is_gone,
    publishes,
    snapshot_holds,
    trimmed_to,
)
from tests.support import HOUR_MS, JSON, create_request
from tidemark.blobs import log_prefix
from tidemark.janitor.sweep import sweep
from tidemark.protocol.errors import (
    Conflict,
)
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.stores import Stores

CASES: dict[str, Case] = {}


def advance(stores: Stores, hours: int) -> None:
    clock: Any = stores.clock_ms
    clock.advance(hours * HOUR_MS)


def due(arrange: Callable[[Stores, StreamKey], Any], hours: int = 2) -> Callable[[Stores, StreamKey], Any]:
    """Nothing else is due, and that is."""

    def arranged(stores: Stores, key: StreamKey) -> Any:
        advance(stores, 48)
        sweep(stores)
        sweep(stores)
        context = arrange(stores, key)
        advance(stores, hours)
        return context

    return arranged


def objects_under(stores: Stores, prefix: str) -> int:
    blobs: Any = stores.blobs
    return int(blobs._client.list_objects_v2(Bucket=blobs._bucket, Prefix=prefix)["KeyCount"])


def deleted_and_made_again(stores: Stores, key: StreamKey) -> str:
    """The incarnation that is due."""
    a_stream(b"x", LARGE)(stores, key)
    incarnation = load_head(stores, key).record.incarnation
    delete(stores, key)
    a_stream(b"new", LARGE)(stores, key)
    return incarnation


def reclaimed(stores: Stores, key: StreamKey, incarnation: Any, _result: Any) -> None:
    assert data_of(stores, key) == b"new" + LARGE
    assert objects_under(stores, log_prefix(incarnation)) == 0


def refused_creation(stores: Stores, key: StreamKey) -> None:
    """Its body is an orphan, and so would that of the stream that is there be, if it were not there."""
    create(stores, key, create_request(JSON, body=b'"' + LARGE + b'"'))
    with suppress(Conflict):
        create(stores, key, create_request(body=LARGE))


def orphan_is_removed(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
    assert data_of(stores, key) == b'"' + LARGE + b'",'


def two_snapshots(stores: Stores, key: StreamKey) -> None:
    a_snapshot(stores, key)
    publishes(1 + len(LARGE), b"<xl>")(stores, key, None)


def a_fork_without_its_source(stores: Stores, key: StreamKey) -> None:
    a_fork_at_its_end(stores, key)
    delete(stores, key)


def neither_source_nor_fork(stores: Stores, key: StreamKey) -> None:
    a_fork_without_its_source(stores, key)
    delete(stores, fork_of(key))


def both_are_gone(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
    is_gone(stores, key, None, None)
    is_gone(stores, fork_of(key), None, None)


def fork_lives(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
    assert data_of(stores, fork_of(key)) == LARGE + b"y"


def sweeps(stores: Stores, _key: StreamKey, _context: Any) -> None:
    sweep(stores)


CASES["the janitor ends what has expired"] = Case(
    due(a_stream(b"x", expiry=Expiry(ttl_seconds=60))), sweeps, is_gone, is_slow=True
)
CASES["the janitor leaves what has not expired"] = Case(
    due(a_stream(LARGE, expiry=Expiry(ttl_seconds=86400)), 1), sweeps, holds(LARGE), is_slow=True
)
CASES["the janitor reclaims a deleted stream"] = Case(
    due(deleted_and_made_again), sweeps, reclaimed, is_slow=True
)
CASES["the janitor removes an orphan"] = Case(due(refused_creation), sweeps, orphan_is_removed, is_slow=True)
CASES["the janitor leaves a large creation"] = Case(
    due(lambda stores, key: create(stores, key, create_request(body=LARGE))),
    sweeps,
    holds(LARGE),
    is_slow=True,
)
CASES["the janitor trims"] = Case(
    due(two_snapshots), sweeps, snapshot_holds(1 + len(LARGE), b"<xl>", b"z"), is_slow=True
)
CASES["the janitor removes what a stream let go of"] = Case(
    due(a_trimmed_stream), sweeps, trimmed_to(1, b"y"), is_slow=True
)
CASES["the janitor removes an upload"] = Case(due(an_upload(b"<x>"), 25), sweeps, holds(b"xy"), is_slow=True)
CASES["the janitor leaves a source to its fork"] = Case(
    due(a_fork_without_its_source), sweeps, fork_lives, is_slow=True
)
CASES["the janitor releases a source"] = Case(
    due(neither_source_nor_fork),
    sweeps,
    both_are_gone,
    is_slow=True,
)


@pytest.mark.parametrize("name", CASES)
def test_a_run_of_the_janitor_is_right_after_one_cut_reply(cut_scene: Scene, name: str) -> None:
    check_one_cut_reply(cut_scene, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_run_of_the_janitor_is_right_when_every_reply_is_cut(cut_scene: Scene, name: str) -> None:
    check_every_reply_cut(cut_scene, CASES[name])

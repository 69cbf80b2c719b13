"""Snapshots, uploads and trimming while a reply of storage is cut."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.cut_cases import (
    LARGE,
    Case,
    Scene,
    a_snapshot,
    a_stream,
    an_upload,
    check_every_reply_cut,
    check_one_cut_reply,
    publishes,
    returns,
    snapshot_holds,
    trimmed_to,
    trims,
)
from tests.support import BYTES
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.bootstrap import bootstrap
from tidemark.service.load import load_head
from tidemark.service.snapshots import (
    MAX_ANSWER_BYTES,
    PublishRequest,
    begin_upload,
    publish_snapshot,
    read_snapshot,
)
from tidemark.service.stores import Stores

CASES: dict[str, Case] = {}
CASES["publish a snapshot"] = Case(
    a_stream(b"x", b"y"), publishes(1, b"<x>"), snapshot_holds(1, b"<x>", b"y")
)
CASES["publish another snapshot"] = Case(
    a_snapshot, publishes(1 + len(LARGE), b"<xl>"), snapshot_holds(1 + len(LARGE), b"<xl>", b"z")
)
CASES["read a snapshot"] = Case(
    a_snapshot, lambda stores, key, _: read_snapshot(stores, key, 1).data, returns(b"<x>")
)
CASES["bootstrap"] = Case(
    a_snapshot,
    lambda stores, key, _: [part.body for part in bootstrap(stores, key).parts],
    returns([b"<x>", LARGE, b"z"]),
)


CASES["trim"] = Case(a_stream(b"x", b"y"), trims, trimmed_to(1, b"y"))


def publish_upload(stores: Stores, key: StreamKey, upload: Any) -> Any:
    return publish_snapshot(stores, key, PublishRequest(1, BYTES, upload=upload))


def large_upload_is_there(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
    snapshot = load_head(stores, key).record.snapshot
    assert snapshot is not None
    assert snapshot.size == MAX_ANSWER_BYTES + 1
    assert stores.blobs.get(snapshot.blob) == bytes(MAX_ANSWER_BYTES + 1)
    composed = stores.blobs.get(f"{snapshot.blob}.bootstrap")
    assert bytes(MAX_ANSWER_BYTES + 1) in composed


CASES["begin an upload"] = Case(
    a_stream(b"x"),
    lambda stores, key, _: begin_upload(stores, key, 1),
    lambda _stores, _key, _context, result: None if result.url else pytest.fail("no URL"),
)
CASES["publish an upload"] = Case(an_upload(b"<x>"), publish_upload, snapshot_holds(1, b"<x>", b"y"))
CASES["publish an upload of nothing"] = Case(an_upload(b""), publish_upload, snapshot_holds(1, b"", b"y"))
CASES["publish a large upload"] = Case(
    an_upload(bytes(MAX_ANSWER_BYTES + 1)), publish_upload, large_upload_is_there, is_slow=True
)


@pytest.mark.parametrize("name", CASES)
def test_a_snapshot_is_right_after_one_cut_reply(cut_scene: Scene, name: str) -> None:
    check_one_cut_reply(cut_scene, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_snapshot_is_right_when_every_reply_is_cut(cut_scene: Scene, name: str) -> None:
    check_every_reply_cut(cut_scene, CASES[name])

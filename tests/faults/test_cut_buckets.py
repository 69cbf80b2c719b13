"""Buckets while a reply of storage is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.cut_cases import Case, Scene, check_every_reply_cut, check_one_cut_reply, nothing, returns
from tests.support import create_request
from tidemark.protocol.bucket import ListingRequest
from tidemark.protocol.errors import (
    BucketExists,
    BucketNotFound,
)
from tidemark.protocol.stream_key import StreamKey
from tidemark.service import buckets
from tidemark.service.catalog import list_streams
from tidemark.service.create import create
from tidemark.service.stores import Stores

CASES: dict[str, Case] = {}


def bucket_of(key: StreamKey) -> str:
    return f"b-{key.stream_id}"


def a_bucket(stores: Stores, key: StreamKey) -> None:
    buckets.create_bucket(stores, bucket_of(key))


def a_bucket_of_two(stores: Stores, key: StreamKey) -> None:
    a_bucket(stores, key)
    for name in ("one", "two"):
        create(stores, StreamKey(bucket_of(key), name), create_request(body=name.encode()))


def bucket_counts(streams: int) -> Callable[..., None]:
    def expect(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
        assert buckets.describe_bucket(stores, bucket_of(key)).streams == streams

    return expect


def bucket_is_gone(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
    with pytest.raises(BucketNotFound):
        buckets.describe_bucket(stores, bucket_of(key))


CASES["create a bucket"] = Case(
    nothing,
    lambda stores, key, _: buckets.create_bucket(stores, bucket_of(key)),
    bucket_counts(0),
    settled=(BucketExists,),
)
CASES["create in a bucket"] = Case(
    a_bucket_of_two,
    lambda stores, key, _: create(stores, StreamKey(bucket_of(key), "three"), create_request()),
    bucket_counts(3),
)
CASES["describe a bucket"] = Case(
    a_bucket_of_two,
    lambda stores, key, _: buckets.describe_bucket(stores, bucket_of(key)).streams,
    returns(2),
)
CASES["list a bucket"] = Case(
    a_bucket_of_two,
    lambda stores, key, _: [
        known.record.key.stream_id for known in list_streams(stores, bucket_of(key), ListingRequest()).streams
    ],
    returns(["one", "two"]),
)
CASES["delete a bucket"] = Case(
    a_bucket,
    lambda stores, key, _: buckets.delete_bucket(stores, bucket_of(key)),
    bucket_is_gone,
    settled=(BucketNotFound,),
    settled_at_once=(BucketNotFound,),
)


@pytest.mark.parametrize("name", CASES)
def test_a_bucket_is_right_after_one_cut_reply(cut_scene: Scene, name: str) -> None:
    check_one_cut_reply(cut_scene, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_bucket_is_right_when_every_reply_is_cut(cut_scene: Scene, name: str) -> None:
    check_every_reply_cut(cut_scene, CASES[name])

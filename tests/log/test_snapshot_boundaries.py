"""Where a snapshot may be published: at the end of any message that is retained."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import pytest

from tests.buckets import accepted, key_in_new_bucket, publish, snapshot_objects, verdict
from tests.support import HOUR_MS, JSON, World, append_request
from tidemark.janitor.sweep import sweep
from tidemark.protocol.errors import Malformed, OffsetBeyondTail, ProtocolError, RetentionGone, StreamNotFound
from tidemark.protocol.expiry import Expiry
from tidemark.service.append import INLINE_BYTES, append
from tidemark.service.bootstrap import bootstrap
from tidemark.service.delete import delete
from tidemark.service.read import read
from tidemark.service.snapshots import delete_snapshot, latest_snapshot, read_snapshot


def test_boundaries_are_the_ends_of_messages(world: World) -> None:
    """Of a single append, a group, a JSON array, the creation's body, a body in S3; before and after them."""
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, content_type=JSON, body=b'[1, "ab"]')
    append(process.stores, key, [append_request(b"[10,200]", content_type=JSON) for _ in range(3)])
    process.append(key, b'{"x":1}', content_type=JSON)
    process.append(key, content_type=JSON, close=True)
    sizes = [2, 5, *[3, 4] * 3, 8]
    ends = list(accumulate(sizes, initial=0))
    assert accepted(process, key) == ends
    assert accepted(world.process(), key) == ends
    for offset in (ends[3], ends[4], ends[-1]):
        publish(process, key, offset)
        left = [end for end in ends if end >= offset]
        assert accepted(process, key) == left
        assert [verdict(process, key, end) for end in ends if end < offset] == [RetentionGone] * (
            len(ends) - len(left)
        )
        world.clock.advance(2 * HOUR_MS)
        sweep(process.stores)
        assert accepted(world.process(), key) == left, "trimming forgets no boundary"


def test_a_batch_in_s3_has_the_boundaries_of_its_messages(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    large = b"x" * (INLINE_BYTES - 1)
    process.create(key, content_type=JSON)
    body = b'["' + large + b'","' + large + b'"]'
    process.append(key, body, content_type=JSON)
    message = len(large) + 3
    assert [verdict(process, key, n * message) for n in range(3)] == [None] * 3
    for offset in (1, message - 1, message + 1, 2 * message - 1):
        assert verdict(process, key, offset) is Malformed
    assert verdict(process, key, 2 * message + 1) is OffsetBeyondTail


def test_an_empty_stream_has_one_boundary(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key)
    assert accepted(process, key) == [0]
    publish(process, key, 0, b"nothing yet")
    assert accepted(process, key) == [0]
    assert read(process.stores, key, 0).page.up_to_date, "offset 0 is retained"
    process.append(key, b"abc")
    assert accepted(process, key) == [0, 3]
    assert read(process.stores, key, 0).data == b"abc"
    assert bootstrap(process.stores, key).parts[0].body == b"nothing yet"


@pytest.mark.parametrize(
    ("offset", "expected"), [(4, RetentionGone), (5, RetentionGone), (99, OffsetBeyondTail), (7, Malformed)]
)
def test_a_publish_is_refused_in_the_documented_order(
    world: World, offset: int, expected: type[ProtocolError]
) -> None:
    """5 is the end of a message, too, but lies below the retained offset."""
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    process.append(key, b"6")
    process.append(key, b"789")
    publish(process, key, 6)
    assert verdict(process, key, offset) is expected


def test_a_refused_publish_stores_nothing(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    for offset in (3, 99):
        with pytest.raises(ProtocolError):
            publish(process, key, offset)
    assert snapshot_objects(process, world, key) == []


@pytest.mark.parametrize("end", ["never", "deleted", "expired"])
def test_a_snapshot_of_a_missing_stream_raises_stream_not_found(world: World, end: str) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    if end != "never":
        process.create(key, body=b"x", expiry=Expiry(ttl_seconds=10))
        publish(process, key, 1)
    if end == "deleted":
        delete(process.stores, key)
    world.clock.advance(HOUR_MS)
    uses: list[Callable[[], object]] = [
        partial(publish, process, key, 1),
        partial(publish, process, key, 0),
        partial(publish, process, key, 9),
        partial(latest_snapshot, process.stores, key),
        partial(read_snapshot, process.stores, key, 1),
        partial(delete_snapshot, process.stores, key, 1),
        partial(bootstrap, process.stores, key),
        partial(read, process.stores, key, 0),
    ]
    for use in uses:
        with pytest.raises(StreamNotFound):
            use()

"""Every use case × the reply to each of its storage calls × where it is cut (`cut_cases.py`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final
from unittest.mock import patch

import pytest

from tests.buckets import objects, publish
from tests.faults.cut_cases import CUTS, Case, Run, Scene
from tests.faults.proxy import Proxy
from tests.support import HOUR_MS, JSON, make_world
from tidemark.blobs import log_prefix, snapshot_blob_key
from tidemark.local.engines import LocalServices
from tidemark.log.schema import PACK_INDEX, log_pk
from tidemark.protocol.bucket import ListingRequest
from tidemark.protocol.errors import (
    BucketExists,
    BucketNotFound,
    Conflict,
    StreamGone,
    StreamNotFound,
)
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.pack import Packing
from tidemark.protocol.retention import Retention
from tidemark.protocol.stream_key import StreamKey
from tidemark.service import buckets
from tidemark.service.append import INLINE_BYTES, _Attempt
from tidemark.service.bootstrap import bootstrap
from tidemark.service.catalog import list_streams
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read, read_on
from tidemark.service.retention import trim_below
from tidemark.service.snapshots import MAX_ANSWER_BYTES, begin_upload, read_snapshot

LARGE: Final = b"large " * (INLINE_BYTES // 6 + 1)
GONE: Final = (StreamNotFound, StreamGone)
CLAIM: Final = ("p", 0, 0)
Look = Callable[[Run], object]


@pytest.fixture(scope="module")
def scene(services: LocalServices) -> Iterator[Scene]:
    with (
        Proxy(os.environ["AWS_ENDPOINT_URL_DYNAMODB"]) as tables,
        Proxy(os.environ["AWS_ENDPOINT_URL_S3"]) as bucket,
        pytest.MonkeyPatch.context() as patched,
    ):
        # Trying again takes no time.
        patched.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
        yield Scene(make_world(services), tables, bucket)


def nothing(_: Run) -> None:
    """What is made before the use case, or looked at behind it."""


def stream(*bodies: bytes, **asked: Any) -> Look:
    def arrange(run: Run) -> None:
        run.create(**asked)
        for body in bodies:
            run.append(body)

    return arrange


def holds(expected: bytes, *, closed: bool = False, start: int = 0) -> Look:
    def expect(run: Run) -> None:
        assert run.data(start) == expected
        assert (run.head.tail.closed, run.head.record.retained) == (closed, start)

    return expect


def returns(expected: object) -> Look:
    def expect(run: Run) -> None:
        assert run.result == expected

    return expect


def creates(**asked: Any) -> Look:
    return lambda run: run.create(**asked)


def appends(body: bytes, **asked: Any) -> Look:
    return lambda run: run.append(body, **asked)


def reads(start: int = 0) -> Look:
    return lambda run: run.data(start)


def is_gone(run: Run) -> None:
    with pytest.raises(GONE):
        load_head(run.stores, run.key)


# --- appends, reads, deletions -----------------------------------------------------------------


def eight_others(run: Run) -> None:
    """As many producers as a batch carries."""
    for number in range(8):
        run.append(b"o", claim=(f"other-{number}", 0, 0))


def a_full_batch(run: Run) -> None:
    run.create()
    eight_others(run)


def a_producer_pushed_out(run: Run) -> None:
    run.create()
    run.append(b"mine", claim=CLAIM)
    eight_others(run)


def append_as_mail(run: Run) -> None:
    with patch.object(_Attempt, "combines", lambda *_: True):
        run.append(b"y", claim=CLAIM)


def a_reader_at_the_tail(run: Run) -> Any:
    """And what has come since."""
    run.create()
    run.append(b"x")
    reading = read(run.stores, run.key, 0)
    run.process.append(run.key, b"news")
    return reading


CASES: dict[str, Case] = {
    "create": Case(nothing, creates(), holds(b"")),
    "create with content": Case(nothing, creates(body=b"first"), holds(b"first")),
    "create closed": Case(nothing, creates(body=b"all", closed=True), holds(b"all", closed=True)),
    "create with a large body": Case(nothing, creates(body=LARGE), holds(LARGE)),
    "create with a lifetime": Case(nothing, creates(expiry=Expiry(ttl_seconds=3600)), holds(b"")),
    "create what is there": Case(stream(b"x"), creates(), holds(b"x")),
    "append, warm": Case(stream(b"x"), appends(b"y", claim=CLAIM), holds(b"xy"), is_warm=True),
    "append, cold": Case(stream(b"x"), appends(b"y", claim=CLAIM), holds(b"xy")),
    "append a large body": Case(stream(b"x"), appends(LARGE, claim=CLAIM), holds(b"x" + LARGE)),
    "append by way of the mailbox": Case(stream(b"x"), append_as_mail, holds(b"xy"), is_slow=True),
    "close": Case(stream(b"x"), appends(b"", close=True), holds(b"x", closed=True)),
    "append and close": Case(stream(b"x"), appends(b"y", close=True, claim=CLAIM), holds(b"xy", closed=True)),
    "append that pushes a producer out": Case(
        a_full_batch, appends(b"y", claim=CLAIM), holds(b"o" * 8 + b"y"), is_warm=True
    ),
    "append repeated by a producer that was pushed out": Case(
        a_producer_pushed_out, appends(b"mine", claim=CLAIM), holds(b"mine" + b"o" * 8)
    ),
    "append by a producer that was pushed out": Case(
        a_producer_pushed_out, appends(b"more", claim=("p", 0, 1)), holds(b"mine" + b"o" * 8 + b"more")
    ),
    "read": Case(stream(b"x", b"y" * 2000, b"z"), reads(), returns(b"x" + b"y" * 2000 + b"z")),
    "read large bodies": Case(
        stream(b"x", LARGE, b"z", LARGE), reads(), returns(b"x" + LARGE + b"z" + LARGE)
    ),
    "read, warm": Case(stream(b"x", LARGE), reads(), returns(b"x" + LARGE), is_warm=True),
    "read from the middle of a batch": Case(stream(b"x", b"12345"), reads(3), returns(b"345")),
    "look of a long-poll": Case(
        a_reader_at_the_tail, lambda run: read_on(run.stores, run.found).data, returns(b"news")
    ),
    "read for metadata": Case(stream(b"12345"), lambda run: run.head.tail.offset, returns(5)),
    "delete": Case(stream(b"x"), lambda run: delete(run.stores, run.key), is_gone, GONE),
    "delete, warm": Case(stream(b"x"), lambda run: delete(run.stores, run.key), is_gone, GONE, is_warm=True),
}

# --- forks, snapshots, uploads, trimming --------------------------------------------------------


def fork(offset: int | None, sub: int = 0) -> Look:
    return lambda run: run.process.fork(run.fork, run.key, offset, sub)


def forked(expected: bytes, source: bytes) -> Look:
    def expect(run: Run) -> None:
        assert run.process.read_all(run.fork) == expected
        assert run.data() == source
        assert run.head.record.references == 1

    return expect


def a_fork_at_its_end(run: Run) -> None:
    stream(LARGE, b"y")(run)
    fork(None)(run)


def publishes(offset: int, body: bytes) -> Look:
    return lambda run: publish(run.process, run.key, offset, body)


def snapshot_holds(offset: int, body: bytes, rest: bytes) -> Look:
    def expect(run: Run) -> None:
        assert read_snapshot(run.stores, run.key, offset).data == body
        assert run.data(offset) == rest

    return expect


def a_snapshot(run: Run) -> None:
    stream(b"x", LARGE, b"z")(run)
    publishes(1, b"<x>")(run)


def an_upload(body: bytes) -> Look:
    def arrange(run: Run) -> Any:
        stream(b"x", b"y")(run)
        upload = begin_upload(run.stores, run.key, 1).id
        run.stores.blobs.put(snapshot_blob_key(run.head.record.incarnation, 1, upload.mark), body)
        return upload

    return arrange


def publish_upload(run: Run) -> None:
    publish(run.process, run.key, 1, b"", upload=run.found)


def large_upload_is_there(run: Run) -> None:
    snapshot, body = run.head.record.snapshot, bytes(MAX_ANSWER_BYTES + 1)
    assert snapshot is not None
    assert snapshot.size == len(body)
    assert run.stores.blobs.get(snapshot.blob) == body
    assert body in run.stores.blobs.get(f"{snapshot.blob}.bootstrap")


def has_a_url(run: Run) -> None:
    assert run.result.url


def trims(offset: int) -> Look:
    def act(run: Run) -> None:
        trim_below(run.stores, run.key, offset)

    return act


CASES |= {
    "fork": Case(stream(LARGE, b"y"), fork(None), forked(LARGE + b"y", LARGE + b"y")),
    "fork inside of a batch": Case(stream(LARGE, b"y"), fork(0, 10), forked(LARGE[:10], LARGE + b"y")),
    "read a fork": Case(a_fork_at_its_end, lambda run: run.process.read_all(run.fork), returns(LARGE + b"y")),
    "publish a snapshot": Case(stream(b"x", b"y"), publishes(1, b"<x>"), snapshot_holds(1, b"<x>", b"y")),
    "publish another snapshot": Case(
        a_snapshot, publishes(1 + len(LARGE), b"<xl>"), snapshot_holds(1 + len(LARGE), b"<xl>", b"z")
    ),
    "read a snapshot": Case(
        a_snapshot, lambda run: read_snapshot(run.stores, run.key, 1).data, returns(b"<x>")
    ),
    "bootstrap": Case(
        a_snapshot,
        lambda run: [part.body for part in bootstrap(run.stores, run.key).parts],
        returns([b"<x>", LARGE, b"z"]),
    ),
    "begin an upload": Case(stream(b"x"), lambda run: begin_upload(run.stores, run.key, 1), has_a_url),
    "publish an upload": Case(an_upload(b"<x>"), publish_upload, snapshot_holds(1, b"<x>", b"y")),
    "publish an upload of nothing": Case(an_upload(b""), publish_upload, snapshot_holds(1, b"", b"y")),
    "publish a large upload": Case(
        an_upload(bytes(MAX_ANSWER_BYTES + 1)), publish_upload, large_upload_is_there, is_slow=True
    ),
    "trim": Case(stream(b"x", b"y"), trims(1), holds(b"y", start=1)),
}

# --- buckets ------------------------------------------------------------------------------------


def a_bucket(run: Run) -> None:
    buckets.create_bucket(run.stores, run.bucket)


def a_bucket_of_two(run: Run) -> None:
    a_bucket(run)
    for name in ("one", "two"):
        run.process.create(StreamKey(run.bucket, name))


def streams_of_the_bucket(run: Run) -> list[str]:
    found = list_streams(run.stores, run.bucket, ListingRequest()).streams
    return [known.record.key.stream_id for known in found]


def count_streams(run: Run) -> int:
    return buckets.describe_bucket(run.stores, run.bucket).streams


def bucket_counts(streams: int) -> Look:
    def expect(run: Run) -> None:
        assert count_streams(run) == streams

    return expect


def bucket_is_gone(run: Run) -> None:
    with pytest.raises(BucketNotFound):
        count_streams(run)


CASES |= {
    "create a bucket": Case(nothing, a_bucket, bucket_counts(0), (BucketExists,)),
    "create in a bucket": Case(
        a_bucket_of_two, lambda run: run.process.create(StreamKey(run.bucket, "three")), bucket_counts(3)
    ),
    "describe a bucket": Case(a_bucket_of_two, count_streams, returns(2)),
    "list a bucket": Case(a_bucket_of_two, streams_of_the_bucket, returns(["one", "two"])),
    "delete a bucket": Case(
        a_bucket,
        lambda run: buckets.delete_bucket(run.stores, run.bucket),
        bucket_is_gone,
        (BucketNotFound,),
        meets_itself=True,
    ),
}

# --- the janitor --------------------------------------------------------------------------------


def due(arrange: Look, expect: Look, *, hours: int = 2, **packing: Packing) -> Case:
    """A run of the janitor in which nothing else is due."""

    def arrange_alone(run: Run) -> object:
        run.world.clock.advance(48 * HOUR_MS)
        run.sweep()
        run.sweep()
        found = arrange(run)
        run.world.clock.advance(hours * HOUR_MS)
        return found

    return Case(arrange_alone, lambda run: run.sweep(**packing), expect, is_slow=True)


def deleted_and_made_again(run: Run) -> str:
    """The incarnation that is due."""
    stream(b"x", LARGE)(run)
    incarnation = run.head.record.incarnation
    delete(run.stores, run.key)
    stream(b"new", LARGE)(run)
    return incarnation


def reclaimed(run: Run) -> None:
    assert run.data() == b"new" + LARGE
    assert objects(run.process, run.world, log_prefix(run.found)) == []


def refused_creation(run: Run) -> None:
    """Its body is an orphan, and so would that of the stream that is there be, if it were not there."""
    run.create(content_type=JSON, body=b'"' + LARGE + b'"')
    with suppress(Conflict):
        run.create(body=LARGE)


def two_snapshots(run: Run) -> None:
    a_snapshot(run)
    publishes(1 + len(LARGE), b"<xl>")(run)


def a_trimmed_stream(run: Run) -> None:
    stream(b"x", b"y")(run)
    trims(1)(run)


def a_fork_without_its_source(run: Run) -> None:
    a_fork_at_its_end(run)
    delete(run.stores, run.key)


def neither_source_nor_fork(run: Run) -> None:
    a_fork_without_its_source(run)
    delete(run.stores, run.fork)


def fork_lives(run: Run) -> None:
    assert run.process.read_all(run.fork) == LARGE + b"y"


def both_are_gone(run: Run) -> None:
    for key in (run.key, run.fork):
        with pytest.raises(GONE):
            load_head(run.stores, key)


CASES |= {
    "the janitor ends what has expired": due(stream(b"x", expiry=Expiry(ttl_seconds=60)), is_gone),
    "the janitor leaves what has not expired": due(
        stream(LARGE, expiry=Expiry(ttl_seconds=86400)), holds(LARGE), hours=1
    ),
    "the janitor reclaims a deleted stream": due(deleted_and_made_again, reclaimed),
    "the janitor removes an orphan": due(refused_creation, holds(b'"' + LARGE + b'",')),
    "the janitor leaves a large creation": due(creates(body=LARGE), holds(LARGE)),
    "the janitor trims": due(two_snapshots, snapshot_holds(1 + len(LARGE), b"<xl>", b"z")),
    "the janitor removes what a stream let go of": due(a_trimmed_stream, holds(b"y", start=1)),
    "the janitor removes an upload": due(an_upload(b"<x>"), holds(b"xy"), hours=25),
    "the janitor leaves a source to its fork": due(a_fork_without_its_source, fork_lives),
    "the janitor releases a source": due(neither_source_nor_fork, both_are_gone),
}

# --- packs and limits ---------------------------------------------------------------------------

#: Packs of two appends each.
SMALL: Final = Packing(HOUR_MS, every_bytes=1, pack_bytes=6, min_batches=2, block_bytes=4)
#: All in one, with the packs before.
ALL: Final = Packing(HOUR_MS, every_bytes=1, min_batches=2, block_bytes=4, keep_replaced_ms=HOUR_MS)
DATA: Final = b"0; 1; 2; 3; 4; "


def a_stream_to_pack(run: Run, **asked: Any) -> None:
    run.stores.packing = SMALL
    stream(*(DATA[start : start + 3] for start in range(0, len(DATA), 3)), **asked)(run)


def a_packed_stream(run: Run) -> None:
    a_stream_to_pack(run)
    run.world.clock.advance(2 * HOUR_MS)
    run.sweep()
    assert packs_of(run) == [0, 6]


def packs_of(run: Run) -> list[int]:
    items, _ = run.stores.table.query(log_pk(run.key, run.head.record.incarnation))
    return [int(item["sk"]["S"][:16]) for item in items if PACK_INDEX in item]


def is_packed(run: Run) -> None:
    """Whatever was cut: the next round ends what this one has begun."""
    assert run.data() == DATA
    run.sweep(packing=SMALL)
    assert packs_of(run) == [0, 6]
    assert [run.data(start) for start in (0, 4, 9)] == [DATA, DATA[4:], DATA[9:]]


def packs_to_merge(run: Run) -> None:
    a_packed_stream(run)
    run.stores.packing = ALL
    run.append(b"5; ")
    run.append(b"5; ")


def is_merged(run: Run) -> None:
    assert run.data() == DATA + b"5; 5; "
    run.sweep(packing=ALL)
    # Where the object of a pack could not be read to the end, that pack stays, and the new one is made.
    assert packs_of(run) in ([0], [0, 6, 12])
    assert run.data() == DATA + b"5; 5; "


def forked_inside(run: Run) -> None:
    assert run.process.read_all(run.fork) == DATA[:3]
    assert run.head.record.references == 1


def a_pack_that_was_let_go_of(run: Run) -> None:
    a_packed_stream(run)
    trims(9)(run)


def is_trimmed(run: Run) -> None:
    run.sweep()
    assert run.data(9) == DATA[9:]
    assert packs_of(run) == [6]


def keeps_its_last_bytes(run: Run) -> None:
    """The look that was cut is made again, and another one follows."""
    run.sweep()
    assert run.head.record.retained == 9
    assert run.data(9) == DATA[9:]
    run.append(b"5; ")
    run.world.clock.advance(3 * HOUR_MS)
    run.sweep()
    assert run.head.record.retained == 12


CASES |= {
    "the janitor packs": due(a_stream_to_pack, is_packed, packing=SMALL),
    "the janitor packs packs": due(packs_to_merge, is_merged, packing=ALL),
    "the janitor removes a pack": due(a_pack_that_was_let_go_of, is_trimmed),
    "the janitor looks at a limit": due(
        lambda run: a_stream_to_pack(run, retention=Retention(size=6)), keeps_its_last_bytes
    ),
    "read a pack": Case(a_packed_stream, reads(), returns(DATA), is_slow=True),
    "read from the middle of a block": Case(a_packed_stream, reads(7), returns(DATA[7:]), is_slow=True),
    "fork inside of a pack": Case(a_packed_stream, fork(3), forked_inside, is_slow=True),
    "publish inside of a pack": Case(
        a_packed_stream, publishes(3, b"<x>"), snapshot_holds(3, b"<x>", DATA[3:]), is_slow=True
    ),
}


@pytest.mark.parametrize(("name", "cut"), [(name, cut) for name in CASES for cut in CASES[name].cuts()])
def test_a_use_case_is_right_after_the_reply_to_any_of_its_calls_is_cut(
    scene: Scene, name: str, cut: str
) -> None:
    scene.check(CASES[name], CUTS[cut])

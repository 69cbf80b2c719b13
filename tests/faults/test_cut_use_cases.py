"""Every use case while one of the replies of its storage calls is cut: what it says is right, or it says
that the outcome is unknown; asked again it ends as if nothing had happened. Nothing that was acknowledged
is lost, and nothing lands twice.

Whole: each use case below, each of its storage calls, both ways of sending. Sampled: where the reply is
cut. `test_cut_replies.py` cuts behind every byte; here it is before and inside of the status line, at the end
of each header, inside of the length, and at the begin, the middle and the end of the body (for the janitor's
runs and large uploads, and on the loop, five of those; where plays are slow, one of several replies that are
alike). Beside one cut reply, each call's replies are cut, in the headers, until the caller gives up.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from tests.faults.proxy import Proxy, Reply, Sent
from tests.support import BYTES, HOUR_MS, JSON, World, a_key, append_request, create_request, make_world
from tidemark.blobs.store import log_prefix, snapshot_blob_key
from tidemark.janitor.sweep import sweep
from tidemark.local.engines import LocalServices
from tidemark.local.on_loop.stores import OnLoop
from tidemark.log.recent import RecentBatches
from tidemark.log.tails import TailCache
from tidemark.protocol.errors import (
    BucketExists,
    BucketNotFound,
    Busy,
    Conflict,
    OutcomeUnknown,
    ProtocolError,
    StorageUnavailable,
    StreamGone,
    StreamNotFound,
)
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.fork import ForkPoint
from tidemark.protocol.listing import ListingRequest
from tidemark.protocol.stream_key import StreamKey
from tidemark.service import buckets
from tidemark.service.append import INLINE_BYTES, append
from tidemark.service.bootstrap import bootstrap
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.list_streams import list_streams
from tidemark.service.load import load_head
from tidemark.service.publish_snapshot import MAX_ANSWER_BYTES, PublishRequest, publish_snapshot
from tidemark.service.read import read, read_on
from tidemark.service.read_snapshot import read_snapshot
from tidemark.service.stores import Stores
from tidemark.service.trim import trim_below
from tidemark.service.upload_snapshot import begin_upload

LARGE: Final = b"large " * (INLINE_BYTES // 6 + 1)
#: What a client may be told: try again.
UNKNOWN: Final = (OutcomeUnknown, StorageUnavailable, Busy)
GONE: Final = (StreamNotFound, StreamGone)


# --- where a reply is cut ----------------------------------------------------------------


def positions(raw: bytes) -> list[int]:
    """The samples, in order; of replies with as many headers as many."""
    status = raw.index(b"\r\n")
    head = raw.index(b"\r\n\r\n") + 4
    ends = [status + 2]
    while ends[-1] < head:
        ends.append(raw.index(b"\r\n", ends[-1]) + 2)
    length = raw.lower().index(b"content-length:") + len("content-length: ") + 1
    body = [head + 1, (head + len(raw)) // 2, len(raw) - 1] if len(raw) > head else []
    return sorted({0, 5, len(b"HTTP/1.1 20"), len(b"HTTP/1.1 200"), status, length, *ends[:-1], *body})


def five(raw: bytes) -> list[int]:
    found = positions(raw)
    return [found[index] for index in (0, 3, len(found) // 2, -2, -1)]


Samples = Callable[[bytes], list[int]]


@dataclass
class Cutter:
    """Cuts the reply of that number, counted over both engines, at that sample; with `always` also those
    to every later call of its operation."""

    number: int
    sample: int
    samples: Samples
    always: bool = False
    seen: list[Reply] = field(default_factory=list)
    operation: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, reply: Reply) -> Sent:
        with self.lock:
            number = len(self.seen)
            self.seen.append(reply)
        if number == self.number:
            self.operation = reply.operation
        if number != self.number and not (self.always and reply.operation == self.operation):
            return Sent(reply.raw)
        found = self.samples(reply.raw)
        return Sent(reply.raw[: found[min(self.sample, len(found) - 1)]], close=True)


# --- the two ways --------------------------------------------------------------------------


class Scene:
    """One table and one bucket, reached directly and past the proxies."""

    def __init__(self, world: World, tables: Proxy, objects: Proxy, kind: str) -> None:
        self.kind, self._proxies = kind, (tables, objects)
        self._direct = world.process().stores
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(os.environ, "AWS_ENDPOINT_URL_DYNAMODB", tables.endpoint)
            patch.setitem(os.environ, "AWS_ENDPOINT_URL_S3", objects.endpoint)
            process = world.process()
            self._pool = ThreadPoolExecutor(4)
            self._loop = OnLoop(process.stores, process.settings, self._pool) if kind != "blocking" else None
        self._runner = asyncio.Runner()
        self._stores = self._loop.stores if self._loop else process.stores
        blobs: Any = self._stores.blobs
        self._stores.table._dynamodb.sleep = blobs.objects.sleep = lambda _: None

    def close(self) -> None:
        if self._loop:
            self._runner.run(self._loop.close())
        self._runner.close()
        self._pool.shutdown()

    def direct(self) -> Stores:
        return _fresh(self._direct)

    def proxied(self) -> Stores:
        return _fresh(self._stores)

    def run(self, call: Callable[[], Any]) -> Any:
        return self._runner.run(self._loop.run(call)) if self._loop else call()  # type: ignore[arg-type]

    @contextmanager
    def spoiled(self, cutter: Cutter) -> Iterator[None]:
        with ExitStack() as stack:
            for proxy in self._proxies:
                stack.enter_context(proxy.spoiling(cutter))
            yield


def _fresh(stores: Stores) -> Stores:
    """As a process that has just begun."""
    return replace(stores, tails=TailCache(), recent=RecentBatches(1 << 24))


@pytest.fixture(scope="module")
def world(services: LocalServices) -> World:
    return make_world(services)


@pytest.fixture(scope="module", params=["blocking", "on the loop"])
def scene(request: pytest.FixtureRequest, world: World) -> Iterator[Scene]:
    with (
        Proxy(os.environ["AWS_ENDPOINT_URL_DYNAMODB"]) as tables,
        Proxy(os.environ["AWS_ENDPOINT_URL_S3"]) as objects,
        pytest.MonkeyPatch.context() as patch,
    ):
        # Trying again takes no time.
        patch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
        made = Scene(world, tables, objects, request.param)
        yield made
        made.close()


# --- the use cases -------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """`arrange` makes what the use case finds and returns what the others must know. `act` is the use case,
    the same each time it is asked. `expect` looks at the end of it, and at what it has returned.
    `settled` are the refusals that say, to whoever asks again, that it has taken place."""

    arrange: Callable[[Stores, StreamKey], Any]
    act: Callable[[Stores, StreamKey, Any], Any]
    expect: Callable[[Stores, StreamKey, Any, Any], None]
    settled: tuple[type[ProtocolError], ...] = ()
    #: The same, to whoever has asked once: the call was repeated underneath, and met itself.
    settled_at_once: tuple[type[ProtocolError], ...] = ()
    warm: bool = False
    samples: Samples = positions


CASES: dict[str, Case] = {}


def data_of(stores: Stores, key: StreamKey, start: int = 0) -> bytes:
    data, at_tail = b"", False
    while not at_tail:
        reading = read(stores, key, start)
        data, start, at_tail = data + reading.data, reading.page.end, reading.page.up_to_date
    return data


def a_stream(*bodies: bytes, **asked: Any) -> Callable[[Stores, StreamKey], None]:
    def arrange(stores: Stores, key: StreamKey) -> None:
        create(stores, key, create_request(**asked))
        for body in bodies:
            append(stores, key, [append_request(body)])

    return arrange


def nothing(_stores: Stores, _key: StreamKey) -> None:
    pass


def holds(expected: bytes, *, closed: bool = False) -> Callable[..., None]:
    def expect(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
        assert data_of(stores, key) == expected
        assert load_head(stores, key).tail.closed == closed

    return expect


def creates(**asked: Any) -> Callable[..., Any]:
    return lambda stores, key, _: create(stores, key, create_request(**asked))


def appends(body: bytes, **asked: Any) -> Callable[..., Any]:
    def act(stores: Stores, key: StreamKey, _: Any) -> Any:
        (answer,) = append(stores, key, [append_request(body, **asked)])
        if isinstance(answer, ProtocolError):
            raise answer
        return answer

    return act


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


def returns(expected: Any) -> Callable[..., None]:
    def expect(_stores: Stores, _key: StreamKey, _context: Any, result: Any) -> None:
        assert result == expected

    return expect


def the_rest(stores: Stores, key: StreamKey) -> Any:
    """A reader at the tail, and what has come since."""
    a_stream(b"x")(stores, key)
    reading = read(stores, key, 0)
    append(_fresh(stores), key, [append_request(b"news")])
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


def is_gone(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
    with pytest.raises(GONE):
        load_head(stores, key)


CASES["delete"] = Case(a_stream(b"x"), lambda stores, key, _: delete(stores, key), is_gone, settled=GONE)
CASES["delete, warm"] = Case(
    a_stream(b"x"), lambda stores, key, _: delete(stores, key), is_gone, settled=GONE, warm=True
)


def fork_of(key: StreamKey) -> StreamKey:
    return StreamKey(key.bucket, f"{key.stream_id}-fork")


def fork(stores: Stores, key: StreamKey, offset: int | None, sub: int = 0) -> Any:
    return create(stores, fork_of(key), create_request(content_type=None, fork=ForkPoint(key, offset, sub)))


def a_fork_at_its_end(stores: Stores, key: StreamKey) -> None:
    a_stream(LARGE, b"y")(stores, key)
    fork(stores, key, None)


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


def publishes(offset: int, body: bytes) -> Callable[..., Any]:
    return lambda stores, key, _: publish_snapshot(stores, key, PublishRequest(offset, BYTES, body))


def snapshot_holds(offset: int, body: bytes, rest: bytes) -> Callable[..., None]:
    def expect(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
        assert read_snapshot(stores, key, offset).data == body
        assert data_of(stores, key, offset) == rest

    return expect


def a_snapshot(stores: Stores, key: StreamKey) -> None:
    a_stream(b"x", LARGE, b"z")(stores, key)
    publishes(1, b"<x>")(stores, key, None)


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


def trimmed_to(offset: int, rest: bytes) -> Callable[..., None]:
    def expect(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
        assert load_head(stores, key).record.retained == offset
        assert data_of(stores, key, offset) == rest

    return expect


def trims(stores: Stores, key: StreamKey, _: Any) -> None:
    trim_below(stores, key, 1)


def a_trimmed_stream(stores: Stores, key: StreamKey) -> None:
    a_stream(b"x", b"y")(stores, key)
    trims(stores, key, None)


CASES["trim"] = Case(a_stream(b"x", b"y"), trims, trimmed_to(1, b"y"))


def an_upload(body: bytes) -> Callable[[Stores, StreamKey], Any]:
    def arrange(stores: Stores, key: StreamKey) -> Any:
        a_stream(b"x", b"y")(stores, key)
        upload = begin_upload(stores, key, 1).id
        incarnation = load_head(stores, key).record.incarnation
        stores.blobs.put(snapshot_blob_key(incarnation, 1, upload.mark), body)
        return upload

    return arrange


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
    an_upload(bytes(MAX_ANSWER_BYTES + 1)), publish_upload, large_upload_is_there, samples=five
)


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


# --- the janitor ---------------------------------------------------------------------------


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
    due(a_stream(b"x", expiry=Expiry(ttl_seconds=60))), sweeps, is_gone, samples=five
)
CASES["the janitor leaves what has not expired"] = Case(
    due(a_stream(LARGE, expiry=Expiry(ttl_seconds=86400)), 1), sweeps, holds(LARGE), samples=five
)
CASES["the janitor reclaims a deleted stream"] = Case(
    due(deleted_and_made_again), sweeps, reclaimed, samples=five
)
CASES["the janitor removes an orphan"] = Case(due(refused_creation), sweeps, orphan_is_removed, samples=five)
CASES["the janitor leaves a large creation"] = Case(
    due(lambda stores, key: create(stores, key, create_request(body=LARGE))),
    sweeps,
    holds(LARGE),
    samples=five,
)
CASES["the janitor trims"] = Case(
    due(two_snapshots), sweeps, snapshot_holds(1 + len(LARGE), b"<xl>", b"z"), samples=five
)
CASES["the janitor removes what a stream let go of"] = Case(
    due(a_trimmed_stream), sweeps, trimmed_to(1, b"y"), samples=five
)
CASES["the janitor removes an upload"] = Case(due(an_upload(b"<x>"), 25), sweeps, holds(b"xy"), samples=five)
CASES["the janitor leaves a source to its fork"] = Case(
    due(a_fork_without_its_source), sweeps, fork_lives, samples=five
)
CASES["the janitor releases a source"] = Case(
    due(neither_source_nor_fork),
    sweeps,
    both_are_gone,
    samples=five,
)


# --- playing them --------------------------------------------------------------------------


def play(scene: Scene, case: Case, cutter: Cutter) -> list[Reply]:
    """One use case with its replies cut, and once more if need be; the replies to the first time."""
    direct, key = scene.direct(), a_key()
    context = case.arrange(direct, key)
    stores = scene.proxied()
    if case.warm:
        scene.run(lambda: load_head(stores, key))
    with scene.spoiled(cutter):
        outcome_known, result = attempt(scene, lambda: case.act(stores, key, context), case.settled_at_once)
    if not outcome_known:
        outcome_known, result = attempt(scene, lambda: case.act(stores, key, context), case.settled)
        assert outcome_known, "nothing is in its way any more"
    case.expect(scene.direct(), key, context, result)
    return cutter.seen


def attempt(
    scene: Scene, act: Callable[[], Any], settled: tuple[type[ProtocolError], ...] = ()
) -> tuple[bool, Any]:
    try:
        return True, scene.run(act)
    except UNKNOWN:
        return False, None
    except settled:
        return True, None


@pytest.mark.parametrize("name", CASES)
def test_a_use_case_is_right_after_one_cut_reply(scene: Scene, name: str) -> None:
    """Of each call once, at each sample."""
    case = CASES[name]
    samples = case.samples if scene.kind == "blocking" else five
    recorded = play(scene, case, Cutter(-1, 0, samples))
    assert recorded, "the use case asks storage"
    played = 0
    for number, reply in calls_of(case, recorded):
        for sample in range(len(samples(reply.raw))):
            play(scene, case, Cutter(number, sample, samples))
            played += 1
    print(f"{name}: {played} cuts")


@pytest.mark.parametrize("name", CASES)
def test_a_use_case_is_right_when_every_reply_is_cut(scene: Scene, name: str) -> None:
    """From each call on, all replies to its operation."""
    case = CASES[name]
    recorded = play(scene, case, Cutter(-1, 0, five))
    calls = calls_of(case, recorded)
    for number, _ in calls:
        play(scene, case, Cutter(number, 2, five, always=True))
    print(f"{name}: {len(calls)} cuts")


def calls_of(case: Case, recorded: list[Reply]) -> list[tuple[int, Reply]]:
    """The calls whose replies are cut, by number; where plays are slow, of those that are alike the first."""
    if case.samples is positions:
        return list(enumerate(recorded))
    first: dict[tuple[str, int], tuple[int, Reply]] = {}
    for number, reply in enumerate(recorded):
        first.setdefault((reply.operation, len(reply.body)), (number, reply))
    return list(first.values())

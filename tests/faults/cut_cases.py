"""A use case while one of the replies of its storage calls is cut: what it says is right, or it says that the
outcome is unknown; asked again it ends as if nothing had happened. Nothing that was acknowledged is lost, and
nothing lands twice.

Whole: each case of the files `test_cut_*.py` that stand on this, each of its storage calls. Sampled: where
the reply is cut. `test_cut_replies.py` and `test_damaged_bytes.py` cut replies behind every byte, or each
few: wherever it is, the client says that there was no answer. So a few places are enough here: before the
status line and inside of it, in a header, in the length, and before the last byte. For the janitor it is two
of them, and of its replies that are alike one is cut. Beside one cut reply, each call's replies are cut, in
the headers, until the caller gives up.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from tests.faults.proxy import Proxy, Reply, Sent
from tests.support import BYTES, World, a_key, append_request, create_request, table_of
from tidemark.blobs import snapshot_blob_key
from tidemark.log.tails import RecentBatches, TailCache
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.errors import (
    Busy,
    OutcomeUnknown,
    ProtocolError,
    StorageUnavailable,
    StreamGone,
    StreamNotFound,
)
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import INLINE_BYTES, append
from tidemark.service.create import create
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.retention import trim_below
from tidemark.service.snapshots import PublishRequest, begin_upload, publish_snapshot, read_snapshot
from tidemark.service.stores import Stores

LARGE: Final = b"large " * (INLINE_BYTES // 6 + 1)
#: What a client may be told: try again.
UNKNOWN: Final = (OutcomeUnknown, StorageUnavailable, Busy)
GONE: Final = (StreamNotFound, StreamGone)


# --- where a reply is cut ----------------------------------------------------------------


def positions(raw: bytes) -> list[int]:
    """Behind nothing, inside of the status, of a header and of the length, and before the last byte."""
    headers = raw.index(b"\r\n") + 5
    length = raw.lower().index(b"content-length:") + len("content-length: ") + 1
    return sorted({0, len(b"HTTP/1.1 20"), headers, length, len(raw) - 1})


def headers_and_end(raw: bytes) -> list[int]:
    return [raw.index(b"\r\n") + 5, len(raw) - 1]


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


# --- the way there ---------------------------------------------------------------------------


class Scene:
    """One table and one bucket, reached directly and past the proxies."""

    def __init__(self, world: World, tables: Proxy, objects: Proxy) -> None:
        self._proxies = (tables, objects)
        self._direct = world.process().stores
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(os.environ, "AWS_ENDPOINT_URL_DYNAMODB", tables.endpoint)
            patch.setitem(os.environ, "AWS_ENDPOINT_URL_S3", objects.endpoint)
            self._stores = world.process().stores
        blobs: Any = self._stores.blobs
        table_of(self._stores).dynamodb.sleep = blobs.objects.sleep = lambda _: None

    def direct(self) -> Stores:
        return fresh(self._direct)

    def proxied(self) -> Stores:
        return fresh(self._stores)

    @contextmanager
    def spoiled(self, cutter: Cutter) -> Iterator[None]:
        with ExitStack() as stack:
            for proxy in self._proxies:
                stack.enter_context(proxy.spoiling(cutter))
            yield


def fresh(stores: Stores) -> Stores:
    """As a process that has just begun."""
    return replace(stores, tails=TailCache(), recent=RecentBatches(1 << 24))


# --- a case -------------------------------------------------------------------------------


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
    #: Of its replies that are alike, one is cut.
    is_slow: bool = False


# --- what cases begin with, and how they end ------------------------------------------------


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


def returns(expected: Any) -> Callable[..., None]:
    def expect(_stores: Stores, _key: StreamKey, _context: Any, result: Any) -> None:
        assert result == expected

    return expect


def fork_of(key: StreamKey) -> StreamKey:
    return StreamKey(key.bucket, f"{key.stream_id}-fork")


def fork(stores: Stores, key: StreamKey, offset: int | None, sub: int = 0) -> Any:
    return create(stores, fork_of(key), create_request(content_type=None, fork=ForkPoint(key, offset, sub)))


def a_fork_at_its_end(stores: Stores, key: StreamKey) -> None:
    a_stream(LARGE, b"y")(stores, key)
    fork(stores, key, None)


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


def an_upload(body: bytes) -> Callable[[Stores, StreamKey], Any]:
    def arrange(stores: Stores, key: StreamKey) -> Any:
        a_stream(b"x", b"y")(stores, key)
        upload = begin_upload(stores, key, 1).id
        incarnation = load_head(stores, key).record.incarnation
        stores.blobs.put(snapshot_blob_key(incarnation, 1, upload.mark), body)
        return upload

    return arrange


def is_gone(stores: Stores, key: StreamKey, _context: Any, _result: Any) -> None:
    with pytest.raises(GONE):
        load_head(stores, key)


# --- playing them --------------------------------------------------------------------------


def play(scene: Scene, case: Case, cutter: Cutter) -> list[Reply]:
    """One use case with its replies cut, and once more if need be; the replies to the first time."""
    direct, key = scene.direct(), a_key()
    context = case.arrange(direct, key)
    stores = scene.proxied()
    if case.warm:
        load_head(stores, key)
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
        return True, act()
    except UNKNOWN:
        return False, None
    except settled:
        return True, None


def calls_of(case: Case, recorded: list[Reply]) -> list[tuple[int, Reply]]:
    """The calls whose replies are cut, by number."""
    if not case.is_slow:
        return list(enumerate(recorded))
    first: dict[tuple[str, int], tuple[int, Reply]] = {}
    for number, reply in enumerate(recorded):
        first.setdefault((reply.operation, len(reply.body)), (number, reply))
    return list(first.values())


def check_one_cut_reply(scene: Scene, case: Case) -> None:
    """Of each call once, at each sample."""
    samples = positions if not case.is_slow else headers_and_end
    recorded = play(scene, case, Cutter(-1, 0, samples))
    assert recorded, "the use case asks storage"
    for number, reply in calls_of(case, recorded):
        for sample in range(len(samples(reply.raw))):
            play(scene, case, Cutter(number, sample, samples))


def check_every_reply_cut(scene: Scene, case: Case) -> None:
    """From each call on, all replies to its operation."""
    recorded = play(scene, case, Cutter(-1, 0, headers_and_end))
    for number, _ in calls_of(case, recorded):
        play(scene, case, Cutter(number, 0, headers_and_end, always=True))

"""A use case while a reply to one of its storage calls is cut: what it says is right, or it says that the
outcome is unknown; asked again it ends as if nothing had happened. Nothing that was acknowledged is lost, and
nothing lands twice.

`test_cut_replies.py` and `test_cut_boto_replies.py` cut replies behind every byte, or each few: wherever it
is, the client says that there was no answer. So three places are enough here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from tests.faults.proxy import Proxy, Reply, Sent
from tests.support import Process, World, a_key
from tidemark.janitor.sweep import sweep
from tidemark.log.tails import RecentBatches, StreamHead, TailCache
from tidemark.protocol.errors import Busy, OutcomeUnknown, ProtocolError, StorageUnavailable
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_head

#: What a client may be told: try again.
UNKNOWN: Final = (OutcomeUnknown, StorageUnavailable, Busy)


@dataclass
class Run:
    """A process that has just begun, and the names of one case."""

    process: Process
    world: World
    key: StreamKey
    #: What `arrange` has returned, and what `act` has.
    found: Any = None
    result: Any = None

    def __post_init__(self) -> None:
        stores = replace(self.process.stores, tails=TailCache(), recent=RecentBatches(1 << 24))
        self.process = replace(self.process, stores=stores)
        self.stores = stores
        self.fork = StreamKey(self.key.bucket, f"{self.key.stream_id}-fork")
        self.bucket = f"b-{self.key.stream_id}"

    @property
    def head(self) -> StreamHead:
        return load_head(self.stores, self.key)

    def create(self, **asked: Any) -> Any:
        return self.process.create(self.key, **asked)

    def append(self, body: bytes, **asked: Any) -> Any:
        return self.process.append(self.key, body, **asked)

    def data(self, start: int = 0) -> bytes:
        return self.process.read_all(self.key, start)

    def sweep(self, **changed: Any) -> None:
        sweep(replace(self.stores, **changed))


@dataclass(frozen=True)
class Case:
    """`arrange` makes what the use case finds. `act` is the use case, the same each time it is asked.
    `expect` looks at the end of it, in a process of its own.

    `settled` are the refusals that say, to whoever asks again, that it has taken place; with `meets_itself`
    also to whoever has asked once.
    """

    arrange: Callable[[Run], Any]
    act: Callable[[Run], Any]
    expect: Callable[[Run], object]
    settled: tuple[type[ProtocolError], ...] = ()
    meets_itself: bool = False
    is_warm: bool = False
    #: Of its replies that are alike one is cut, and at fewer places.
    is_slow: bool = False

    def cuts(self) -> list[str]:
        return [name for name in CUTS if not (self.is_slow and name == "before it")]


@dataclass(frozen=True)
class Cut:
    """Behind how many bytes of a reply; and whether also the replies to all later calls of its operation."""

    position: Callable[[bytes], int]
    always: bool = False


def _in_a_header(raw: bytes) -> int:
    return raw.index(b"\r\n") + 5


CUTS: Final = {
    "before it": Cut(lambda _: 0),
    "in a header": Cut(_in_a_header),
    "before its last byte": Cut(lambda raw: len(raw) - 1),
    "in a header, and every later one": Cut(_in_a_header, always=True),
}


@dataclass
class Cutter:
    """Cuts the reply of that number, counted over both engines."""

    cut: Cut
    number: int
    is_slow: bool
    operation: str | None = None
    seen: set[object] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, reply: Reply) -> Sent:
        with self.lock:
            kind = (reply.operation, len(reply.body)) if self.is_slow else len(self.seen)
            is_next = kind not in self.seen and len(self.seen) == self.number
            self.seen.add(kind)
            if is_next:
                self.operation = reply.operation
        if is_next or (self.cut.always and reply.operation == self.operation):
            return Sent(reply.raw[: self.cut.position(reply.raw)], close=True)
        return Sent(reply.raw)


class Scene:
    """One table and one bucket, reached directly and past the proxies."""

    def __init__(self, world: World, tables: Proxy, objects: Proxy) -> None:
        self._world, self._proxies = world, (tables, objects)
        self._direct = world.process()
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(os.environ, "AWS_ENDPOINT_URL_DYNAMODB", tables.endpoint)
            patch.setitem(os.environ, "AWS_ENDPOINT_URL_S3", objects.endpoint)
            self._proxied = world.process()
        self._proxied.dynamodb.sleep = self._proxied.objects.sleep = lambda _: None

    def check(self, case: Case, cut: Cut) -> None:
        """Cut the reply to each call in turn, until the use case makes no further one."""
        number = 0
        while self._play(case, Cutter(cut, number, case.is_slow)):
            number += 1
        assert number, "the use case asks storage"

    def _play(self, case: Case, cutter: Cutter) -> bool:
        """The use case with its replies cut, and once more if need be; whether a reply was cut."""
        direct = Run(self._direct, self._world, a_key())
        direct.found = case.arrange(direct)
        run = replace(direct, process=self._proxied)
        if case.is_warm:
            load_head(run.stores, run.key)
        with ExitStack() as stack:
            for proxy in self._proxies:
                stack.enter_context(proxy.spoiling(cutter))
            outcome_known = attempt(case, run, case.settled if case.meets_itself else ())
        if not outcome_known:
            assert attempt(case, run, case.settled), "nothing is in its way any more"
        case.expect(replace(run, process=self._direct))
        return cutter.operation is not None


def attempt(case: Case, run: Run, settled: tuple[type[ProtocolError], ...]) -> bool:
    """Whether it says what has come of it."""
    try:
        run.result = case.act(run)
    except UNKNOWN:
        return False
    except settled:
        run.result = None
    return True

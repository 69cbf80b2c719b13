"""A stream over simulated storage, and what was appended to it; calls that are counted and broken."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from tests.simulation.tasks import Crashed
from tests.simulation.world import SimulatedWorld
from tests.support import BYTES, HOUR_MS, append_request, create_request, table_of
from tidemark.aws.retry import NoAnswer
from tidemark.janitor.sweep import sweep
from tidemark.log.due import KEEP_REPLACED_MS, Packing
from tidemark.log.read import load_stream
from tidemark.log.records import Entry, Pack, StreamRecord
from tidemark.log.schema import decode_entry
from tidemark.protocol.compaction import Compaction
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.expiry import FOREVER, Retention
from tidemark.protocol.messages import ContentType
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import append
from tidemark.service.create import create
from tidemark.service.read import read
from tidemark.service.stores import Stores

KEY, FORK = StreamKey("v1", "a"), StreamKey("v1", "fork")
#: Small packs of small blocks, so that short streams have many of both.
SMALL: Final = Packing(HOUR_MS, every_bytes=64, pack_bytes=300, min_batches=2, block_bytes=40)
#: Packs of some sixty bytes, none of which is small enough to be taken in.
PARTS: Final = replace(SMALL, pack_bytes=60)
#: All of it in one pack, with the packs before.
ONE: Final = replace(SMALL, pack_bytes=10**6)

#: What may happen to a call: it is lost and its process dies, it is carried out and its process dies, or its
#: reply is lost once.
BREAKS: Final = ("killed before", "killed behind", "lost")


@dataclass
class Scene:
    packing: Packing | None = SMALL
    content_type: ContentType = BYTES
    retention: Retention = FOREVER
    compaction: Compaction | None = None
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    data: bytes = b""
    ends: list[int] = field(default_factory=lambda: [0])
    #: When each message was appended, by where it ends.
    times: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # What is appended is the same, whatever is packed in between.
        self.words = random.Random(7)
        self.world = SimulatedWorld(self.chance, None, packing=self.packing)
        self.stores = self.process()
        asked = create_request(self.content_type, retention=self.retention, compaction=self.compaction)
        create(self.stores, KEY, asked)

    def process(self, packing: Packing | None = None) -> Stores:
        """One that knows nothing yet."""
        stores = self.world.process()[1]
        stores.packing = packing or stores.packing
        return stores

    def pack_by(self, packing: Packing) -> None:
        """From now on. Each process has it from its beginning."""
        self.world._packing = packing

    # --- what changes it ---

    def append(self, batches: int = 1) -> None:
        """Some batches have one message, some have several appends together."""
        for _ in range(batches):
            self._write([self._body() for _ in range(self.words.choice((1, 1, 1, 3)))])

    def write(self, *bodies: bytes, close: bool = False) -> None:
        """A batch of each."""
        for body in bodies:
            self._write([(body, [body])], close=close)

    def _write(self, group: list[tuple[bytes, list[bytes]]], *, close: bool = False) -> None:
        asked = partial(append_request, content_type=self.content_type, close=close)
        answers = append(self.stores, KEY, [asked(body) for body, _ in group])
        assert not any(isinstance(answer, Exception) for answer in answers)
        for message in (message for _, messages in group for message in messages):
            self.data += message
            self.ends.append(len(self.data))
            self.times[len(self.data)] = self.world.now_ms

    def _body(self) -> tuple[bytes, list[bytes]]:
        number = str(len(self.data)).encode()
        if not self.content_type.is_json:
            body = number + b"." * self.words.randrange(20)
            return body, [body]
        values = [b"1" + number + b"0" * self.words.randrange(9) for _ in range(self.words.choice((1, 1, 3)))]
        return b"[" + b",".join(values) + b"]", [value + b"," for value in values]

    def fork(self, offset: int, sub: int = 0) -> int:
        """Where the fork begins."""
        asked = create_request(None, fork=ForkPoint(KEY, offset, sub))
        return create(self.stores, FORK, asked).head.record.base or 0

    def sweep_after(self, ms: int = HOUR_MS) -> Any:
        self.world.advance(ms)
        return sweep(self.process())

    def wait_until_removed(self) -> None:
        """The objects of packs that were taken in are kept for long."""
        self.sweep_after(KEEP_REPLACED_MS)

    # --- what is there ---

    def record(self, key: StreamKey = KEY) -> StreamRecord:
        found = load_stream(self.process().table, key)
        assert found is not None
        return found

    def items(self) -> list[dict[str, Any]]:
        """The log's batches in order."""
        items = [item for item in self.world.table.items() if item["pk"]["S"].startswith("log/v1/a#")]
        return sorted(items, key=lambda item: str(item["sk"]["S"]))

    def entries(self) -> list[Entry]:
        return [decode_entry(item) for item in self.items()]

    def packs(self) -> list[Pack]:
        return [entry for entry in self.entries() if isinstance(entry, Pack)]

    def starts(self) -> list[int]:
        return [entry.start for entry in self.entries()]

    def due(self, *kinds: str) -> list[dict[str, Any]]:
        """The janitor's entries of these kinds."""
        return [item for item in self.world.table.items() if item.get("kd", {}).get("S") in kinds]

    def read_from(
        self, start: int, stores: Stores | None = None, *, key: StreamKey = KEY, small: bool = False
    ) -> bytes:
        stores, data, at_tail = stores or self.process(), b"", False
        while not at_tail:
            reading = read(stores, key, start, small=small)
            data, start, at_tail = data + reading.data, reading.page.end, reading.page.up_to_date
        return data

    def check(self, step: int = 7, *, retained: int = 0, knowing: Stores | None = None) -> None:
        """From the end of each message the rest can be read, by a process that knows nothing and by one that
        has read everything."""
        knowing = knowing or self.process()
        ends = [end for end in self.ends if end >= retained]
        for start in [*ends[::step], ends[-1]]:
            assert self.read_from(start) == self.data[start:], start
            assert self.read_from(start, knowing, small=True) == self.data[start:], start


STAGES: Final = ("plain", "packed", "half removed", "packed again", "packed again, half removed")


def a_scene_at(stage: str, batches: int = 40, **asked: Any) -> Scene:
    """The same stream at each stage. Between two batches passes no time, or a little, or a day."""
    is_packed_twice = stage.startswith(("packed again", "to be packed again"))
    scene, before = Scene(packing=PARTS if is_packed_twice else SMALL, **asked), list[dict[str, Any]]()
    for is_packed in (is_packed_twice, stage not in {"plain", "to be packed again"}):
        for _ in range(batches // 2):
            scene.append()
            scene.world.advance(scene.words.choice((0, 0, 1, 1000, 24 * HOUR_MS)))
        before = scene.items()
        scene.world.advance(HOUR_MS)
        assert not is_packed or sweep(scene.process()).packed
        scene.pack_by(ONE if is_packed_twice else SMALL)
    if stage.endswith("half removed"):
        starts = scene.starts()
        replaced = [item for item in before if int(item["sk"]["S"]) not in starts]
        for item in replaced[::2]:
            scene.world.table.store(item)
    return scene


Act = Callable[[str], object]


def each_call(stores: Stores, before: Act = lambda _: None, after: Act = lambda _: None) -> None:
    """Let something happen around every call of a process."""
    for client in (table_of(stores).dynamodb, stores.blobs._objects):  # type: ignore[attr-defined]

        def acting(operation: str, *more: Any, send: Any = client.send) -> Any:
            before(operation)
            answer = send(operation, *more)
            after(operation)
            return answer

        client.send = acting


def counted(scene: Scene) -> tuple[Stores, Counter[str]]:
    """A new process whose calls are counted."""
    stores, calls = scene.process(), Counter[str]()
    each_call(stores, lambda operation: calls.update([operation]))
    return stores, calls


def break_call(stores: Stores, at: int, how: str) -> list[str]:
    """The process's call of that number breaks (`BREAKS`). Returns the list of its calls, which grows."""
    calls: list[str] = []

    def before(operation: str) -> None:
        calls.append(operation)
        if len(calls) == at + 1 and how == "killed before":
            raise Crashed

    def after(_operation: str) -> None:
        if len(calls) == at + 1 and how == "killed behind":
            raise Crashed
        if len(calls) == at + 1 and how == "lost":
            raise NoAnswer("injected")

    each_call(stores, before, after)
    return calls


def die() -> None:
    raise Crashed


def before_the_next(stores: Stores, operation: str, act: Callable[[], object]) -> None:
    """Do this once, just before the process's next call of this operation."""
    pending = [act]

    def acting(sent: str) -> None:
        if sent == operation and pending:
            pending.pop()()

    each_call(stores, acting)

"""What all writers and readers share: where to go, what to write down, and how to insist on an answer."""

import asyncio
import math
import random
import time
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.client import JSON, Answer, Client, NoAnswer, NotSent, TimedOut
from tests.chaos.recording import (
    Append,
    Outcome,
    Page,
    Recordings,
    StreamHistory,
    Violation,
    render_body,
    render_messages,
)

#: Beyond 64 KiB a body goes to S3.
LARGE_PADDING: Final = 70_000
#: Asked again later: the answer says so.
BUSY, UNAVAILABLE = 429, 503
SERVER_FAULT, VANISHED, RESURRECTED = "5xx other than 503", "404 for what is there", "a deleted thing is back"
LET_IN = "what must be refused is let in"
UNAVAILABLE_FOR_GOOD = "503, or no answer, for good"
NO_ANSWER: Final = Answer(0, {}, b"no answer")
NO_PROGRESS = "a page that ends where it begins"
BRICKED, REFUSED_THOUGH_RIGHT = "a name that cannot be used again", "refused though right"
#: A request that is given up changes what may happen to its name later, so the patience is long.
PATIENT_SECONDS: Final = 75.0
#: A name that is told to wait for longer than anything here lasts is lost.
BRICKED_SECONDS: Final = 120.0
#: So is what gives no answer but 5xx for longer than any row of faults lasts,
UNAVAILABLE_SECONDS: Final = 240.0
#: and whatever there is no answer for, this long after the last fault. It is one limit for all requests, so
#: that a hundred streams that cannot be read are told as soon as one,
PEACE_SECONDS: Final = 45.0
#: but for the tries of those that come to it late.
LAST_TRIES_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Published:
    """A snapshot that must be there until the next one is published."""

    path: str
    offset: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Table:
    """A compacted stream, and the rows that are the end of all its changes."""

    path: str
    rows: dict[str, int]


@dataclass
class Scene:
    server_port: int
    clients_port: int
    seed: int
    recordings: Recordings = field(default_factory=Recordings)
    began: float = field(default_factory=time.monotonic)
    #: Set when nobody is to begin anything new.
    over: asyncio.Event = field(default_factory=asyncio.Event)
    #: From when on nothing excuses that there is no answer.
    peace_at: float = math.inf
    acknowledged: int = 0
    messages: int = 0
    #: Requests by what they were and what they were answered.
    counts: Counter[str] = field(default_factory=Counter)
    #: Read once more at the end: path and history.
    kept: list[tuple[str, StreamHistory]] = field(default_factory=list)
    #: Published, and not superseded.
    kept_snapshots: list[Published] = field(default_factory=list)
    #: Compacted streams that nobody writes any more, and which of all of them have been compacted.
    kept_tables: list[Table] = field(default_factory=list)
    compacted: set[str] = field(default_factory=set)
    #: Deleted, and never made again.
    dead: list[str] = field(default_factory=list)

    def chance(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def keep(self, path: str, history: StreamHistory) -> None:
        """It is to be read once more at the end."""
        history.unread = True
        self.kept.append((path, history))

    @property
    def elapsed(self) -> float:
        """Seconds since the campaign began."""
        return time.monotonic() - self.began

    @property
    def is_over(self) -> bool:
        return self.over.is_set()

    def make_peace(self) -> None:
        """Nothing is broken any more, and nobody is to begin anything new."""
        self.over.set()
        self.peace_at = time.monotonic() + PEACE_SECONDS

    def is_for_good(self, began: float, unavailable_seconds: float = UNAVAILABLE_SECONDS) -> bool:
        """Whether what has had no answer since `began` will have none."""
        now = time.monotonic()
        is_late = now > self.peace_at and now - began > LAST_TRIES_SECONDS
        return is_late or now - began > unavailable_seconds

    def acknowledge(self, history: StreamHistory, append: Append, end: int, *, exact: bool = True) -> None:
        history.acknowledge(append, time.monotonic(), end, exact=exact)
        self.acknowledged += 1
        self.messages += append.messages

    def step(
        self, stream: str, what: str, answer: Answer, allowed: frozenset[int] | set[int], wrong: str
    ) -> bool:
        """Counts an answer; whether it is one that may come. Another one is a violation, named `wrong`."""
        self.counts[f"{what} {answer.status}"] += 1
        if answer.status == 404 and wrong in {BRICKED, LET_IN, REFUSED_THOUGH_RIGHT, RESURRECTED}:
            wrong = VANISHED
        is_right = answer.status in allowed
        if not is_right:
            detail = answer.body[:200].decode("latin-1")
            text = f"{what} at {self.elapsed:.1f} s was answered {answer.status}: {detail}"
            self.recordings.violations.append(Violation(wrong, stream, text))
        return is_right

    def compare(self, stream: str, what: str, expected: bytes, found: bytes, wrong: str) -> None:
        self.recordings.compared += 1
        if found != expected:
            text = f"found {found[:60]!r} ({len(found)} bytes), expected {expected[:60]!r}"
            text = f"{what} at {self.elapsed:.1f} s: {text}"
            self.recordings.violations.append(Violation(wrong, stream, text))

    def is_server_fault(self, stream: str, what: str, answer: Answer) -> bool:
        """Any 5xx leaves the outcome open; only 503 may be one."""
        if answer.status < 500:
            return False
        self.step(stream, what, answer, {UNAVAILABLE}, SERVER_FAULT)
        return True


def says_nothing_happened(answer: Answer) -> bool:
    """Whether it promises that nothing was written."""
    return answer.status < 500 or b"othing" in answer.body


class Party(ABC):
    """A writer or a reader at a stream that lives as long as the campaign."""

    #: Whether every append of a writer is in the order of sending (`StreamHistory.strict`).
    is_strict = False

    def __init__(self, scene: Scene, path: str, history: StreamHistory, name: str, port: int) -> None:
        self.scene = scene
        self.path = path
        self.history = history
        self.name = name
        self.chance = scene.chance(name)
        self.client = Client(port)
        if self.is_strict:
            history.strict.add(name)

    @abstractmethod
    async def run(self) -> None:
        """Until the campaign is over."""


class Left(Exception):
    """A name is left as it is: what became of it is not known, or wrong, and then that is told."""


class Insisting:
    """Asks until there is an answer that says something, past the clients' proxy."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.scene = scene
        self.name = name
        self.chance = scene.chance(name)
        self.client = Client(scene.server_port)
        self.unavailable_seconds = UNAVAILABLE_SECONDS
        self.patient_seconds = PATIENT_SECONDS

    async def insist(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        what: str,
        at_first: set[int],
        later: frozenset[int] | set[int] = frozenset(),
        wrong: str = REFUSED_THOUGH_RIGHT,
        expires_at: float = math.inf,
    ) -> Answer:
        """The first answer that is neither 429 nor a 5xx, counted. `later` are the statuses that may come as
        well once an earlier try was left without an answer; from `expires_at` on, by the monotonic clock, 409
        is right. Raises Left where the answer is wrong, where there is none for good, or where nobody knows
        what a try that timed out may still do (a read does nothing)."""
        allowed = set(at_first)
        busy_since = began = time.monotonic()
        while True:
            try:
                answer, is_unknown = await self._ask(what, method, path, body, headers)
            except TimedOut:
                if self.scene.is_for_good(began, math.inf):
                    self.scene.step(path, what, NO_ANSWER, allowed, UNAVAILABLE_FOR_GOOD)
                raise Left from None
            if is_unknown:
                allowed |= later
            if answer.status in {0, BUSY} or answer.status >= 500:
                busy_since = busy_since if answer.status == BUSY else time.monotonic()
                if why := self._why_to_give_up(answer, began, busy_since):
                    self.scene.step(path, what, answer, allowed, why)
                    raise Left
                await asyncio.sleep(self.chance.uniform(0.05, 0.3))
                continue
            if time.monotonic() >= expires_at:
                allowed.add(409)
            if self.scene.step(path, what, answer, allowed, wrong):
                return answer
            raise Left

    def _why_to_give_up(self, answer: Answer, began: float, busy_since: float) -> str | None:
        if answer.status == BUSY:
            return BRICKED if time.monotonic() - busy_since > BRICKED_SECONDS else None
        return UNAVAILABLE_FOR_GOOD if self.scene.is_for_good(began, self.unavailable_seconds) else None

    async def _ask(
        self, what: str, method: str, path: str, body: bytes, headers: Mapping[str, str] | None
    ) -> tuple[Answer, bool]:
        """The answer, with status 0 where there is none, and whether it leaves open what was done. Raises
        TimedOut where something may still be done."""
        try:
            answer = await self.client.request(method, path, body, headers, self.patient_seconds)
        except TimedOut:
            self.scene.counts[f"{what} given up"] += 1
            if method != "GET":
                raise
            return NO_ANSWER, False
        except NoAnswer as none:
            return NO_ANSWER, not isinstance(none, NotSent)
        return answer, self.scene.is_server_fault(path, what, answer)

    async def pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds * self.chance.uniform(0.5, 1.5)):
                await self.scene.over.wait()
        except TimeoutError:
            return

    async def append(self, path: str, history: StreamHistory, append: Append, **headers: str) -> None:
        """Exactly once: the writer is a producer, and numbers its appends from 0 on."""
        history.appends.append(append)
        claim = {"Producer-Id": append.writer, "Producer-Epoch": "0", "Producer-Seq": str(append.number)}
        body, asked = render_body(render_messages(append)), JSON | claim | headers
        answer = await self.insist(
            "POST", path, body, asked, what="append", at_first={200}, later={204}, wrong=VANISHED
        )
        self.scene.acknowledge(history, append, answer.next_offset)

    async def append_some(self, path: str, history: StreamHistory, writer: str, count: int) -> None:
        for number in range(count):
            append = Append(writer, number, self.chance.choice((1, 1, 1, 4)), time.monotonic())
            await self.append(path, history, append)

    async def append_refused(  # noqa: PLR0917 - what it is, and how it is sent
        self,
        path: str,
        history: StreamHistory,
        append: Append,
        body: bytes,
        headers: Mapping[str, str],
        status: int,
    ) -> None:
        """What must be refused with `status`, and never be seen."""
        append.outcome = Outcome.REFUSED
        history.appends.append(append)
        what = f"bad append ({status})"
        with suppress(Left):
            await self.insist("POST", path, body, headers, what=what, at_first={status}, wrong=LET_IN)

    async def read_log(self, path: str, history: StreamHistory) -> bytes:
        """The log from its base to the tail; its pages are recorded. Where it cannot be read, the judge is
        told so by `unread`."""
        history.unread = True
        pieces, offset, is_read = [], history.base, False
        while not is_read:
            known_end = history.known_end
            answer = await self.insist(
                "GET", f"{path}?offset={offset:016d}", what="catch-up", at_first={200}, wrong=VANISHED
            )
            history.pages.append(read_page(self.name, offset, answer, known_end))
            pieces.append(stored_bytes(answer.body))
            is_read = answer.up_to_date
            if not is_read and answer.next_offset <= offset:
                self.scene.step(path, "catch-up", answer, frozenset(), NO_PROGRESS)
                raise Left
            offset = answer.next_offset
        history.unread, history.log = False, b"".join(pieces)
        return history.log


def stored_bytes(body: bytes) -> bytes:
    """Of a JSON array: each message, followed by a comma."""
    inner = body[1:-1]
    return inner + b"," if inner else b""


def read_page(reader: str, start: int, answer: Answer, known_end: int) -> Page:
    data = stored_bytes(answer.body)
    return Page(reader, start, answer.next_offset, zlib.crc32(data), len(data), known_end, answer.up_to_date)

"""One campaign: the system starts, everybody writes and reads, and faults come by the schedule. Then all is
quiet, everything is read once more, and judged."""

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from tests.chaos.buckets import BucketKeeper, Snapshotter
from tests.chaos.client import JSON
from tests.chaos.disk import Disk
from tests.chaos.followed import Followed
from tests.chaos.hurried import PACK_AFTER_SECONDS, RECLAIM_MS
from tests.chaos.judge import judge
from tests.chaos.lifecycles import Closer, Forker, Lifecycle, Recreator
from tests.chaos.logs import server_log_violations
from tests.chaos.python_client import PythonClient
from tests.chaos.readers import CatchUpReader, EventReader, LongPollReader, SocketReader
from tests.chaos.recording import StreamHistory, Violation
from tests.chaos.report import Totals, progress_line
from tests.chaos.scene import PEACE_SECONDS, Insisting, Left, Party, Scene
from tests.chaos.schedule import SERVER, Fault, make_schedule
from tests.chaos.system import System, SystemFailed
from tests.chaos.tables import TableKeeper, check_table
from tests.chaos.writers import Intruder, PlainWriter, Producer, SequencedWriter

Run = Coroutine[Any, Any, None]
#: How long writers may take over what they have begun, once nothing is broken any more: longer than `scene`
#: lets them wait for a name that is busy.
FINISH_SECONDS: Final = 180.0
PROGRESS_SECONDS: Final = 5.0
#: Until everything that waits for the janitor has fallen due, and it has come round (`hurried.py`).
AFTERMATH_SECONDS: Final = RECLAIM_MS / 1000 + 10
#: A campaign that is to reach so many appends ends after this long at the latest.
LONGEST_MINUTES: Final = 120.0
#: Nothing takes longer, but writing and what follows from how long that took.
PHASE_SECONDS: Final = 600.0
_CANCEL_SECONDS: Final = 10.0
#: So many read what is to be there in the end.
_LAST_READERS: Final = 8


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many streams of a kind, and on each how many writers; `watched` by readers who wait, or only read
    now and then."""

    streams: int
    producers: int
    plain_writers: int
    watched: bool = True


#: One process shares a write among those who write to one stream; functions race for it. A batch remembers
#: eight producers: where there are more, the others have items of their own.
CROWDS: Final = {
    "asgi": (Crowd(4, 8, 48), Crowd(1, 20, 2)),
    "lambda": (Crowd(4, 3, 2), Crowd(1, 12, 0), Crowd(16, 1, 1, watched=False)),
}

LIVES: Final[tuple[tuple[type[Lifecycle], str, int], ...]] = (
    (Recreator, "again", 2),
    (Followed, "followed", 2),
    (Closer, "close", 2),
    (Forker, "fork", 2),
    (BucketKeeper, "bucket", 2),
    (Snapshotter, "folded", 3),
    (PythonClient, "client", 2),
    (TableKeeper, "table", 3),
)

#: A campaign that lasts longer must have packs in the end.
_PACKS_AFTER_SECONDS: Final = 3 * PACK_AFTER_SECONDS


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. `appends` instead of `minutes` goes on until so many are acknowledged."""

    seed: int
    via: str
    minutes: float
    appends: int | None = None


@dataclass
class Campaign:
    wish: Wish
    folder: Path
    disk: Disk
    say: Callable[[str], None]
    faults: Counter[str] = field(default_factory=Counter)
    began: float = 0.0
    packs: int = 0
    _failures: list[Violation] = field(default_factory=list)
    _is_ending: bool = False
    #: When the last fault ended.
    _ended: float | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self) -> list[Violation]:
        """Everything that is wrong."""
        self.system = System(self.wish.via, self.folder, self.disk, self.wish.seed)
        self.scene = Scene(self.system.server_port, 0, self.wish.seed)
        try:
            try:
                await self._phases()
            except SystemFailed as failure:
                self._failures.append(Violation("a part does not come back", "the system", str(failure)))
            return self._judge()
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_CANCEL_SECONDS)
            await asyncio.wait({asyncio.create_task(self.system.close())}, timeout=_CANCEL_SECONDS)

    async def _phases(self) -> None:
        """Where one does not end in its time, that is a violation, and the next one begins."""
        await self._limited("start", PHASE_SECONDS, self.system.start())
        self.scene.clients_port = self.system.clients_port
        supervising = asyncio.create_task(self.system.supervise())
        try:
            await self._limited("populate", PHASE_SECONDS, self._populate())
            self.began = self.scene.began = time.monotonic()
            minutes = self.wish.minutes if self.wish.appends is None else LONGEST_MINUTES
            await self._limited("faults", minutes * 60 + PHASE_SECONDS, self._under_fire(supervising))
            self._ended = time.monotonic()
            await self._limited("settle", FINISH_SECONDS + PHASE_SECONDS, self._settle())
            reading_seconds = 2 * PEACE_SECONDS + self._ended - self.began
            await self._limited("read everything", reading_seconds, self._read_all())
            await self._limited("count packs", PHASE_SECONDS, self._count_packs())
        finally:
            supervising.cancel()

    async def _limited(self, phase: str, seconds: float, run: Run) -> None:
        """A phase that is over its time is left behind: it may not even end by being cancelled."""
        task = asyncio.create_task(run)
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if done:
            task.result()
            return
        task.cancel()
        self._tasks.append(task)
        self.say(f"{phase}: not over after {seconds:.0f} s")
        self._failures.append(Violation("a phase does not end", phase, f"not over after {seconds:.0f} s"))

    async def _count_packs(self) -> None:
        self.packs = await asyncio.to_thread(self.system.count_packs)

    @property
    def totals(self) -> Totals:
        scene, until = self.scene, self._ended or time.monotonic()
        faults = sum(self.faults.values())
        return Totals(scene.acknowledged, scene.messages, faults, self.system.hits, until - self.began)

    async def _populate(self) -> None:
        keeper = Insisting(self.scene, "keeper")
        crowds = [crowd for crowd in CROWDS[self.wish.via] for _ in range(crowd.streams)]
        for number, crowd in enumerate(crowds):
            path = f"/v1/stream/main-{number}"
            history = self.scene.recordings.history(path)
            with suppress(Left):
                await keeper.insist("PUT", path, headers=JSON, what="create", at_first={201})
            self.scene.keep(path, history)
            for run in self._population(path, history, f"m{number}", crowd):
                self._start(run)
        for run in self._lives():
            self._start(run)

    def _population(self, path: str, history: StreamHistory, name: str, crowd: Crowd) -> Iterator[Run]:
        """Every fourth goes through the proxy that stands between clients and server."""
        scene, direct, harmed = self.scene, self.scene.server_port, self.scene.clients_port
        kinds: list[tuple[type[Party], str, int]] = [(CatchUpReader, "c0", direct)]
        for number in range(max(crowd.producers, crowd.plain_writers)):
            port = direct if number % 4 else harmed
            kinds += [(Producer, f"p{number}", port)] if number < crowd.producers else []
            kinds += [(PlainWriter, f"w{number}", port)] if number < crowd.plain_writers else []
        for number, port in enumerate((direct, harmed) if crowd.watched else ()):
            kinds += [(LongPollReader, f"l{number}", port), (EventReader, f"e{number}", port)]
            kinds += [(SocketReader, f"s{number}", port)]
        yield Intruder(scene, path, history, f"{name}i").run()
        for kind, suffix, port in kinds:
            yield kind(scene, path, history, f"{name}{suffix}", port).run()

    def _lives(self) -> Iterator[Run]:
        for kind, name, count in LIVES:
            for number in range(count):
                yield kind(self.scene, f"{name}-{number}").run()
        for number in range(2):
            yield self._sequenced(f"/v1/stream/sequenced-{number}", f"q{number}")

    async def _sequenced(self, path: str, name: str) -> None:
        history = self.scene.recordings.history(path)
        keeper = Insisting(self.scene, name)
        await keeper.insist("PUT", path, headers=JSON, what="create", at_first={201}, later={200})
        self.scene.keep(path, history)
        await SequencedWriter(self.scene, path, history, f"{name}s", self.scene.clients_port).run()

    def _start(self, run: Run) -> None:
        self._tasks.append(asyncio.create_task(self._live(run), name=getattr(run, "__qualname__", "")))

    async def _live(self, run: Run) -> None:
        """A writer or reader that cannot make sense of an answer ends, and that is a violation."""
        try:
            with suppress(Left):
                await run
        except Exception:  # noqa: BLE001 - whatever it is, it is told
            who, text = getattr(run, "__qualname__", ""), traceback.format_exc()
            self._failures.append(Violation("an answer that makes no sense", who, text))

    async def _under_fire(self, supervising: asyncio.Task[None]) -> None:
        firing = asyncio.create_task(self._fire())
        told = self.began
        try:
            while not self._is_enough():
                await asyncio.sleep(0.2)
                for task in (firing, supervising):
                    if task.done():
                        task.result()
                if time.monotonic() - told >= PROGRESS_SECONDS:
                    told = time.monotonic()
                    self.say(progress_line(self.totals, self._left()))
        finally:
            firing.cancel()
            await asyncio.gather(firing, return_exceptions=True)

    def _is_enough(self) -> bool:
        seconds = time.monotonic() - self.began
        if self.wish.appends is not None:
            return self.scene.acknowledged >= self.wish.appends or seconds > LONGEST_MINUTES * 60
        return seconds >= self.wish.minutes * 60

    def _left(self) -> str:
        if self.wish.appends is not None:
            return f"{max(0, self.wish.appends - self.scene.acknowledged)} to go"
        return f"{max(0.0, self.wish.minutes * 60 - (time.monotonic() - self.began)):.0f} s left"

    async def _fire(self) -> None:
        """Each fault in its own time; those of processes one after the other. Cancelled, it lets those that
        have begun come to their end."""
        one_at_a_time, running = asyncio.Lock(), set[asyncio.Task[None]]()
        try:
            has_disk, is_embedded = self.disk.lacking is None, self.system.is_embedded
            for fault in make_schedule(self.wish.seed, with_disk=has_disk, is_embedded=is_embedded):
                await asyncio.sleep(self.began + fault.at - time.monotonic())
                for task in [each for each in running if each.done()]:
                    running.discard(task)
                    task.result()
                running.add(asyncio.create_task(self._suffer(fault, one_at_a_time)))
        finally:
            self._is_ending = True
            await asyncio.gather(*running)

    async def _suffer(self, fault: Fault, one_at_a_time: asyncio.Lock) -> None:
        name = f"{fault.name}, {fault.where}"
        if self.system.is_link(fault.where):
            self.faults[name] += 1
            await self.system.suffer(fault)
            return
        async with one_at_a_time:
            if not self._is_ending:
                self.faults[name] += 1
                await self.system.suffer(fault)

    async def _settle(self) -> None:
        """Nothing is broken any more: writers finish, what is late arrives, the system starts afresh, and the
        janitor removes whatever it may."""
        self.say("no more faults; writers finish what they have begun")
        self.scene.make_peace()
        _, unfinished = await asyncio.wait(self._tasks, timeout=FINISH_SECONDS)
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=_CANCEL_SECONDS)
        self._failures += [Violation("did not finish", task.get_name(), "") for task in unfinished]
        await self.system.calm()
        await self.system.restart_whole()
        self.say(f"for {AFTERMATH_SECONDS:.0f} s the janitor removes what it may")
        await asyncio.sleep(AFTERMATH_SECONDS)

    async def _read_all(self) -> None:
        """What is to be there, and what is not. All of it has one limit: where many streams are lost, their
        tries do not add up."""
        self.say("reading everything once more")
        self.scene.make_peace()
        questions: Iterator[Callable[[Snapshotter], Awaitable[object]]] = chain(
            (partial(Snapshotter.read_log, path=path, history=each) for path, each in self.scene.kept),
            (partial(Snapshotter.read_snapshot, snapshot=each) for each in self.scene.kept_snapshots),
            (partial(check_table, table=each) for each in self.scene.kept_tables),
            (partial(Snapshotter.is_gone, path=path) for path in self.scene.dead),
        )

        async def ask(reader: Snapshotter) -> None:
            reader.patient_seconds = PEACE_SECONDS
            for question in questions:
                with suppress(Left):
                    await question(reader)

        readers = [Snapshotter(self.scene, f"final-{number}") for number in range(_LAST_READERS)]
        await asyncio.gather(*(self._live(ask(reader)) for reader in readers))

    def _judge(self) -> list[Violation]:
        found = [*self._failures, *judge(self.scene.recordings)]
        found += server_log_violations(self.folder / "server.log")
        deaths = self.system.deaths.count(SERVER)
        found += [Violation("the server ended by itself", SERVER, "see server.log")] * deaths
        unread = (path for path, history in self.scene.kept if history.unread)
        found += [Violation("the end cannot be read", path, "no log") for path in unread]
        is_long = time.monotonic() - self.began > _PACKS_AFTER_SECONDS
        if is_long and not self.packs:
            found.append(Violation("nothing was packed", "the system", "so nothing is proven of packs"))
        if is_long and not self.scene.compacted:
            found.append(Violation("nothing was compacted", "the system", "so nothing is proven of it"))
        if not self.scene.acknowledged:
            found.append(Violation("nothing was acknowledged", "the system", "so nothing is proven"))
        return found

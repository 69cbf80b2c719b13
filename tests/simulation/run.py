"""One seed: a history of clients, faults and a moving clock, and what is to be said about it."""

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar, cast

from greenlet import getcurrent

from tests.histories import history as histories
from tests.histories.checker import Undecided, check
from tests.histories.exactly_once import check_exactly_once
from tests.histories.perform import NotCarriedOut, perform, perform_group
from tests.histories.workload import PRODUCERS, RETENTION, WEIGHTS, Workload
from tests.simulation.faults import Shares
from tests.simulation.tasks import Crashed, Task
from tests.simulation.world import LATEST_ARRIVAL_MS, SimulatedWorld, combining, small_limits
from tidemark.janitor.sweep import sweep
from tidemark.log.due import Packing
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.snapshots import begin_upload
from tidemark.service.stores import Stores

MINUTE_MS: Final = 60 * 1000
HOUR_MS: Final = 60 * MINUTE_MS
#: While requests are under way no more time passes than a request may take.
_SHORT_MS: Final = (107, 1_013, 5_029, 20_031)
#: Between the phases of a history, while no request is under way: nothing is old by then, batches are old
#: enough to be packed, trims fall due, or a rest is packed as well, although the stream goes on.
_LONG_MS: Final = (
    0,
    45_037,
    6 * MINUTE_MS,
    12 * MINUTE_MS,
    12 * MINUTE_MS,
    61 * MINUTE_MS,
    5 * HOUR_MS,
    25 * HOUR_MS,
)
SERVERS: Final = 2
#: Batches are packed once no tail and no copy from before can still be about, as an hour guarantees in AWS.
PACKING: Final = Packing(
    11 * MINUTE_MS,
    every_bytes=1,
    pack_bytes=40,
    min_batches=2,
    block_bytes=16,
    keep_replaced_ms=11 * MINUTE_MS,
)
#: In half of the histories nothing is packed before it may be trimmed.
_PACKED_AFTER_MS: Final = (PACKING.after_ms, 30 * HOUR_MS)
#: Where all packs are small, each new one takes in those before it.
_PACK_BYTES: Final = (40, 10_000)
#: How often a client that may give up waits for the answer all the same.
_PATIENT: Final = 0.3
_STEPS_OF_THE_IMPATIENT: Final = 30_000

_T = TypeVar("_T")


@dataclass(slots=True)
class Run:
    """What one seed came to. No problems: the history is right and nothing was left behind.

    `is_undecided`: the checker has given up, and all that is proven is that nothing is lost or doubled. Among
    clients that give up this happens, because so many outcomes are unknown."""

    seed: int
    kind: str = ""
    history: list[histories.Operation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    is_undecided: bool = False
    faults: Counter[str] = field(default_factory=Counter)
    calls: int = 0


def run_seed(
    seed: int,
    kind: str | None = None,
    *,
    without: Collection[str] = (),
    latest_arrival_ms: int = LATEST_ARRIVAL_MS,
    combines: bool = False,
    impatient: bool = False,
) -> Run:
    """Play and check one seed. `kind` is PRODUCERS, RETENTION or one of WEIGHTS, and by default the seed
    chooses one of these; `without` names faults to leave out, `late` every arrival of a copy. With
    `combines`, every single append is posted as mail; with `impatient`, clients give up on requests that are
    still under way, and producers repeat them at whichever server."""
    with small_limits(recent_producers=1 if kind == PRODUCERS else 2), combining(forced=combines):
        return _Play(seed, kind, without, latest_arrival_ms, impatient=impatient).run()


class _GaveUp(Exception):
    """The client waits no longer; the request is still under way."""


class _Play:
    def __init__(
        self,
        seed: int,
        kind: str | None,
        without: Collection[str],
        latest_arrival_ms: int,
        *,
        impatient: bool,
    ) -> None:
        self._chance = random.Random(seed)
        self._impatient = impatient
        chosen = self._chance.choice(list(WEIGHTS))
        self._run = Run(seed, kind or chosen)
        shares = Shares.choose(self._chance, without)
        pack_bytes, after_ms = self._chance.choice(_PACK_BYTES), self._chance.choice(_PACKED_AFTER_MS)
        packing = replace(PACKING, pack_bytes=pack_bytes, after_ms=after_ms)
        self._world = SimulatedWorld(self._chance, shares, latest_arrival_ms, packing)
        names = self._chance.randint(2 if self._run.kind in {"forks", RETENTION} else 1, 3)
        if self._run.kind == PRODUCERS:
            names = 1
        self._workload = Workload(self._chance, self._run.kind, names)
        self._clients = 5 if self._run.kind == PRODUCERS else self._chance.randint(2, 4)
        self._recorder = histories.Recorder(self._run.history)
        self._servers = [self._world.process() for _ in range(SERVERS)]
        self._healed = False

    def run(self) -> Run:
        for phase in range(self._chance.randint(1, 2 if self._run.kind == PRODUCERS else 4)):
            if phase:
                self._between_phases()
            self._phase(first=not phase)
        self._world.heal()
        self._end()
        self._judge()
        self._clean_up()
        self._run.faults, self._run.calls = self._world.faults, self._world.calls
        return self._run

    # --- the history ---

    def _phase(self, *, first: bool) -> None:
        scheduler = self._world.scheduler
        if first:
            scheduler.spawn(lambda: self._ask(0, self._workload.first()))
            scheduler.run()
        for client in range(self._clients):
            requests = self._chance.randint(2, 5 if self._run.kind == PRODUCERS else 7)
            scheduler.spawn(partial(self._client, client, requests))
        scheduler.spawn(self._sweep)
        if self._chance.random() < 0.5:
            scheduler.spawn(self._let_time_pass)
        scheduler.run()

    def _client(self, client: int, requests: int) -> None:
        for _ in range(requests):
            self._one(client, self._workload.next(client))

    def _ask(self, client: int, requests: list[histories.Request]) -> None:
        for request in requests:
            self._one(client, request)

    def _one(self, client: int, request: histories.Request) -> None:
        if isinstance(request, histories.Publish) and self._chance.random() < 0.4:
            request = self._upload(request)
        group = [request]
        if isinstance(request, histories.Append) and not request.creates and self._chance.random() < 0.1:
            # What a server with group commit makes of requests that arrive together.
            group += [self._workload.plain_append(8, request.name) for _ in range(2)]
        called, clock = self._recorder.event(), len(self._world.times_ms) - 1
        try:
            answers = self._on_a_server(lambda stores: _perform_all(stores, group))
        except NotCarriedOut as refusal:
            self._refused(request, str(refusal))
            return
        except (Crashed, _GaveUp):
            answers = [None] * len(group)
        times = tuple(self._world.times_ms[clock:])
        for asked, answer in zip(group, answers, strict=True):
            returned = None if answer is None else self._recorder.event()
            self._run.history.append(histories.Operation(client, asked, called, returned, answer, times))
            self._workload.learn(client, asked, answer if asked is request else None)

    def _refused(self, request: histories.Request, refusal: str) -> None:
        """With healthy storage and no other client a request is carried out."""
        if self._healed:
            self._run.problems.append(f"{request} is answered with {refusal} for good")

    def _on_a_server(self, call: Callable[[Stores], _T]) -> _T:
        """Carry the call out on one of the servers; a killed one is started again, knowing nothing.

        Raises what the call raises, Crashed, and _GaveUp.
        """
        index = self._chance.randrange(len(self._servers))
        number, stores = self._servers[index]

        def carry_out() -> _T | ProtocolError | NotCarriedOut:
            try:
                return call(stores)
            except (ProtocolError, NotCarriedOut) as refusal:
                return refusal

        client, running = getcurrent(), self._world.scheduler.spawn(carry_out, process=number)
        assert isinstance(client, Task)
        self._wait(client, running)
        if isinstance(running.failure, Crashed) and self._servers[index][0] == number:
            self._servers[index] = self._world.process()
        if running.failure is not None:
            raise running.failure
        if isinstance(running.result, Exception):
            raise running.result
        return cast("_T", running.result)

    def _wait(self, client: Task, running: Task) -> None:
        """Raises _GaveUp."""
        if not self._impatient or self._healed or self._chance.random() < _PATIENT:
            client.join([running])
            return
        turns = self._chance.randrange(1, 60)
        timer = self._world.scheduler.spawn(lambda: self._give_turns(turns))
        client.join([running, timer], left=1)
        if not running.dead:
            raise _GaveUp

    def _give_turns(self, turns: int) -> None:
        for _ in range(turns):
            self._world.scheduler.sleep()

    def _upload(self, request: histories.Publish) -> histories.Publish:
        """Put the blob into S3 as a client does, to be published by name."""
        key = _key(request.name)
        try:
            upload = self._on_a_server(lambda stores: begin_upload(stores, key, request.offset))
        except (ProtocolError, Crashed, _GaveUp):
            return request
        self._world.bucket.objects[upload.url.removeprefix("put:")] = request.body
        return replace(request, upload=str(upload.id))

    def _sweep(self) -> None:
        """The janitor, a process of its own."""
        number, stores = self._world.process()
        janitor = getcurrent()
        assert isinstance(janitor, Task)
        janitor.join([self._world.scheduler.spawn(lambda: _sweep_quietly(stores), process=number)])

    def _let_time_pass(self) -> None:
        for _ in range(3):
            self._give_turns(self._chance.randrange(40))
            self._world.advance(self._chance.choice(_SHORT_MS))

    def _between_phases(self) -> None:
        self._world.land_some()
        self._world.advance(self._chance.choice(_LONG_MS))
        if self._chance.random() < 0.5:
            self._world.table.remove_expired()
        self._world.land_some()
        for _ in range(2):
            self._world.scheduler.spawn(self._sweep)
        self._world.scheduler.run()

    # --- what is left of it ---

    def _end(self) -> None:
        """Storage is healthy again: new servers say what is there, and every name can be used."""
        self._healed = True
        self._servers = [self._world.process()]
        if self._chance.random() < 0.5:
            self._world.land_all()
        scheduler, names = self._world.scheduler, self._workload.names
        requests: list[histories.Request] = [histories.Head(name) for name in names]
        requests += [histories.Read(name, 0) for name in names]
        requests += [histories.CountStreams(bucket) for bucket in self._workload.buckets]
        scheduler.spawn(lambda: self._ask(0, requests))
        scheduler.run()
        retained = {
            operation.request.name: operation.answer.offset
            for operation in self._run.history
            if isinstance(operation.request, histories.Read) and operation.answer is not None
            if operation.answer.outcome == "RetentionGone" and operation.answer.offset is not None
        }
        requests = [histories.Read(name, offset) for name, offset in retained.items()]
        requests += [histories.ReadSnapshot(name, offset) for name, offset in retained.items()]
        requests += [histories.Create(name) for name in names]
        scheduler.spawn(lambda: self._ask(0, requests))
        scheduler.run()

    def _judge(self) -> None:
        self._run.problems += check_exactly_once(self._run.history)
        try:
            if self._impatient:
                violation = check(self._run.history, _STEPS_OF_THE_IMPATIENT)
            else:
                violation = check(self._run.history)
        except Undecided as undecided:
            self._run.is_undecided = True
            if not self._impatient:
                self._run.problems.append(str(undecided))
        else:
            if violation is not None:
                self._run.problems.append(str(violation))

    def _clean_up(self) -> None:
        """Once all is deleted and what was under way has arrived, the janitor leaves nothing behind."""
        scheduler, names = self._world.scheduler, self._workload.names
        requests: list[histories.Request] = [histories.Delete(name) for name in names]
        requests += [histories.DeleteBucket(bucket) for bucket in self._workload.buckets]
        history, self._run.history = self._run.history, []
        scheduler.spawn(lambda: self._ask(0, requests))
        scheduler.run()
        self._run.history = history
        self._world.land_all()
        for _ in range(3):
            self._world.advance(25 * HOUR_MS)
            scheduler.spawn(self._sweep)
            scheduler.run()
        self._world.table.remove_expired()
        left = [f"{item['pk']['S']} {item['sk']['S']}" for item in self._world.table.items()]
        left += [f"s3 {key}" for key in self._world.bucket.objects]
        if left:
            self._run.problems.append(f"Deleted and swept, and there is still: {', '.join(left[:10])}")


def _perform_all(stores: Stores, group: Sequence[histories.Request]) -> list[histories.Answer | None]:
    if len(group) == 1:
        return [perform(stores, group[0])]
    return perform_group(stores, [request for request in group if isinstance(request, histories.Append)])


def _sweep_quietly(stores: Stores) -> None:
    """What stops a run of the janitor is still due the next time."""
    with suppress(ProtocolError):
        sweep(stores)


def _key(name: str) -> StreamKey:
    return StreamKey(*name.split("/", 1))

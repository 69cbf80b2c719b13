"""Histories recorded on a real engine: clients on threads, two servers with caches of their own, one table.

Between the servers and their storage calls are refused, replies are lost, and requests arrive once more
after some later calls. Unlike the simulation no seed can be played again: the threads run as they like.
What is kept is the recorded history."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tests.histories.checker import Undecided, check
from tests.histories.exactly_once import check_exactly_once
from tests.histories.history import CountStreams, Create, Head, Operation, Read, Recorder, Request
from tests.histories.perform import NotCarriedOut, perform
from tests.histories.workload import RETENTION, Workload
from tests.simulation.faults import Line, Send, Shares, carry
from tests.simulation.world import combining, small_limits
from tests.support import Process, World, make_world, refusal
from tidemark.janitor.sweep import sweep
from tidemark.local.engines import LocalServices
from tidemark.protocol.errors import ProtocolError
from tidemark.service.stores import Stores

#: Time stands still here, so nothing expires: that is the simulation's part.
KINDS: Final = ("plain", "forks", "snapshots", "buckets")
#: Only where it is asked for, so that a seed goes on to mean what it meant.
KINDS_TO_ASK_FOR: Final = (*KINDS, RETENTION)
SERVERS: Final = 2
#: A table of its own for so many histories.
_ROUND: Final = 500


@dataclass(slots=True)
class Recorded:
    """One history, and what is wrong with it."""

    seed: int
    kind: str
    history: list[Operation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Servers:
    """Two servers on one table and one bucket, with a bad line to both."""

    def __init__(self, services: LocalServices) -> None:
        self._services = services
        self._lock = threading.Lock()
        self._lines: list[Line] = []
        self._late: list[tuple[int, Callable[[], object]]] = []
        self._calls = 0
        self.faults: Counter[str] = Counter()
        self._renew()

    def _renew(self) -> None:
        world: World = make_world(self._services)
        self._processes = [world.process() for _ in range(SERVERS)]
        for number, process in enumerate(self._processes):
            process.dynamodb.send = partial(self._send, number, process.dynamodb.send)
            process.dynamodb.sleep = process.objects.sleep = lambda seconds: time.sleep(min(seconds, 0.002))
        self._histories = 0

    def record(self, seed: int, kind: str | None = None, *, combines: bool = False) -> Recorded:
        """One history, checked. With `combines`, every single append is posted as mail."""
        if self._histories == _ROUND:
            self._renew()
        self._histories += 1
        chance = random.Random(seed)
        chosen = chance.choice(KINDS)
        recorded = Recorded(seed, kind or chosen)
        with small_limits(), combining(forced=combines):
            self._play(chance, recorded)
        recorded.problems += check_exactly_once(recorded.history)
        try:
            violation = check(recorded.history)
        except Undecided as undecided:
            recorded.problems.append(str(undecided))
        else:
            recorded.problems += [str(violation)] if violation else []
        return recorded

    def _play(self, chance: random.Random, recorded: Recorded) -> None:
        names = chance.randint(2 if recorded.kind in {"forks", RETENTION} else 1, 3)
        clients = _Clients(chance, recorded, Workload(chance, recorded.kind, names))
        servers = [_fresh(process) for process in self._processes]
        clients.ask(0, servers, clients.workload.first())
        shares = Shares.choose(chance, without=("crash", "partly"))
        self._lines = [Line(random.Random(chance.random()), shares) for _ in servers]
        count = chance.randint(3, 4)
        with ThreadPoolExecutor(count + 1) as pool:
            tasks = [
                pool.submit(clients.run, client, servers, chance.randint(6, 14)) for client in range(count)
            ]
            if chance.random() < 0.3:
                tasks.append(pool.submit(_sweep_quietly, _fresh(self._processes[0])))
        for task in tasks:
            task.result()
        self._lines = []
        self._land(lambda _: True)
        clients.healed = True
        names_left: list[Request] = [Head(name) for name in clients.workload.names]
        names_left += [Read(name) for name in clients.workload.names]
        names_left += [CountStreams(bucket) for bucket in clients.workload.buckets]
        names_left += [Create(name) for name in clients.workload.names]
        clients.ask(0, [_fresh(self._processes[0])], names_left)

    # --- the line ---

    def _send(self, number: int, send: Send, operation: str, body: bytes) -> tuple[int, bytes]:
        with self._lock:
            self._calls += 1
            fault = self._lines[number].fault() if self._lines else None
            if fault is not None:
                self.faults[fault] += 1
        self._land(lambda call: call <= self._calls)
        if fault == "failed":
            send(operation, body)
            return 500, refusal("InternalServerError")[1]
        return carry(fault, send, (operation, body), lambda: self._send_later(send, operation, body))

    def _send_later(self, send: Send, operation: str, body: bytes) -> None:
        if operation not in {"GetItem", "Query"}:
            with self._lock:
                calls = random.randrange(1, random.choice((8, 50, 400)))
                self._late.append((self._calls + calls, lambda: send(operation, body)))

    def _land(self, arrives: Callable[[int], bool]) -> None:
        with self._lock:
            landing = [send for call, send in self._late if arrives(call)]
            self._late = [(call, send) for call, send in self._late if not arrives(call)]
        for send in landing:
            send()


class _Clients:
    """What the clients of one history ask and hear."""

    def __init__(self, chance: random.Random, recorded: Recorded, workload: Workload) -> None:
        self.workload = workload
        self.healed = False
        self._chance = chance
        self._recorded = recorded
        self._recorder = Recorder(recorded.history)
        self._lock = threading.Lock()
        # A bucket's name holds lower-case letters, digits and hyphens.
        word = uuid.uuid4().hex[:10]
        self._naming = lambda name: f"{name}-{word}"

    def run(self, client: int, servers: Sequence[Stores], requests: int) -> None:
        for _ in range(requests):
            with self._lock:
                request = self.workload.next(client)
            self.ask(client, servers, [request])

    def ask(self, client: int, servers: Sequence[Stores], requests: Sequence[Request]) -> None:
        for request in requests:
            with self._lock:
                stores = self._chance.choice(servers)
                called = self._recorder.event()
            try:
                answer = perform(stores, request, self._naming)
            except NotCarriedOut as refused:
                if self.healed:
                    self._recorded.problems.append(f"{request} is answered with {refused} for good")
                continue
            with self._lock:
                returned = None if answer is None else self._recorder.event()
                self._recorded.history.append(Operation(client, request, called, returned, answer))
                self.workload.learn(client, request, answer)


def _fresh(process: Process) -> Stores:
    """A server that knows nothing yet, by the process's connections."""
    stores = process.stores
    return Stores(stores.table, stores.blobs, clock_ms=stores.clock_ms, concurrency=stores.concurrency)


def _sweep_quietly(stores: Stores) -> None:
    try:
        sweep(stores)
    except ProtocolError:
        return

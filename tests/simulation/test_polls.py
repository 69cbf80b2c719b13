"""Readers that poll while data come fast, with faults and late copies of their registrations: a reader that
waits for a message misses no append, and reads none twice."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

from tests.simulation.faults import Shares
from tests.simulation.world import SimulatedWorld
from tests.support import a_key, append_request, create_request
from tests.wake.support import make_queues
from tidemark.log.schema import log_pk
from tidemark.protocol.errors import ProtocolError
from tidemark.service.append import append
from tidemark.service.create import create
from tidemark.service.read import read
from tidemark.service.stores import Stores
from tidemark.wake.follow import WakeByHub, register_and_read
from tidemark.wake.notifier import Notifier
from tidemark.wake.queue import Waiters, WakeMessage

SEEDS = 200
READERS = ("one", "two")


class Registered(WakeByHub):
    """The registration of a process with one reader."""

    def __init__(self, stores: Stores, url: str) -> None:
        super().__init__()
        self._waiters = Waiters(stores.table, stores.clock_ms, self.hub)
        self._url = url
        self.polls = False

    def ensure_registered(self, incarnation: str, offset: int = 0) -> float:
        self.polls = self._waiters.ensure(incarnation, self._url, offset)
        return 0.0


class Play:
    """Play a seed: a writer without faults, the trigger for each append in any order, and two readers."""

    def __init__(self, seed: int) -> None:
        self._seed, self._chance = seed, random.Random(seed)
        self._world = SimulatedWorld(self._chance, None)
        _, self._stores = self._world.process()
        self._key = a_key()
        create(self._stores, self._key, create_request())
        self._beginning = read(self._stores, self._key, 0)
        self._world._shares = Shares.choose(self._chance, without=("crash",))
        self._notifier = Notifier(self._stores.table, make_queues(), self._stores.clock_ms)
        self.sent = bytes(range(self._chance.randint(10, 40)))
        self._written, self._notified, self._messages = 0, 0, Counter[str]()
        self.got = dict.fromkeys(READERS, b"")
        #: The number of reads with data, by polls and by messages.
        self.by = Counter[str]()

    def run(self) -> None:
        for url in READERS:
            self._world.scheduler.spawn(partial(self._follow, url))
        self._world.scheduler.spawn(self._write)
        self._world.scheduler.run()

    def _write(self) -> None:
        """In less than the life of a registration."""
        for start in range(len(self.sent)):
            append(self._stores, self._key, [append_request(self.sent[start : start + 1])])
            self._written += 1
            self._world.scheduler.spawn(partial(self._notify, start))
            self._world.advance(self._chance.choice((0, 200, 200, 200, 1600)))

    def _notify(self, start: int) -> None:
        message = WakeMessage(log_pk(self._key, self._beginning.record.incarnation), start)
        self._messages.update(wake.waiter.address for wake in self._notifier._load(message, start, {}))
        self._notified += 1

    def _follow(self, url: str) -> None:
        _, stores = self._world.process()
        place, wake = self._beginning.without_bytes(), Registered(stores, url)
        while len(self.got[url]) < len(self.sent):
            try:
                reading, _ = register_and_read(stores, wake, place)
            except ProtocolError:  # The client comes back later.
                self._world.advance(100)
                self._world.scheduler.sleep()
                continue
            if reading.page.has_data:
                self.got[url] += reading.data
                self.by["polls" if wake.polls else "messages"] += 1
                place = reading.without_bytes()
            elif wake.polls:
                self._world.scheduler.sleep()
            else:
                while not self._messages[url]:
                    if self._notified == self._written:
                        assert place.page.end == self._written, f"{self._seed}: {url} is not woken"
                    self._world.scheduler.sleep()
            self._messages[url] = 0


def test_a_reader_gets_each_append_once_and_by_a_message_or_a_poll() -> None:
    by = Counter[str]()
    for seed in range(SEEDS):
        play = Play(seed)
        play.run()
        assert play.got == dict.fromkeys(READERS, play.sent), seed
        by += play.by
    assert min(by["polls"], by["messages"]) > SEEDS, by

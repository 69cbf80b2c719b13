"""What the snapshot folds, and what bootstrap adds to it, is the whole history: at every moment.

A snapshot here is the list of the messages it stands for, so that folding can be checked. While
one process answers a bootstrap, the other appends, publishes and sweeps between any two of its
storage calls.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.buckets import key_in_new_bucket, publish
from tests.simulation.memory import MemoryWorld
from tests.support import BYTES, HOUR_MS, JSON, Process, World, append_request
from tidemark.janitor.sweep import sweep
from tidemark.protocol.errors import ProtocolError, RetentionGone
from tidemark.protocol.snapshot import part_bytes
from tidemark.protocol.stream_key import StreamKey
from tidemark.service import snapshots
from tidemark.service.append import INLINE_BYTES, append
from tidemark.service.delete import delete
from tidemark.service.read import read
from tidemark.service.snapshots import Bootstrap, bootstrap, messages

who = st.sampled_from([0, 1])
bodies = st.lists(st.binary(min_size=1, max_size=6).map(bytes.hex).map(str.encode), min_size=1, max_size=3)


class Histories(RuleBasedStateMachine):
    world: World
    patch: pytest.MonkeyPatch

    @initialize(is_json=st.booleans(), large=st.booleans())
    def start(self, is_json: bool, large: bool) -> None:
        self.processes: list[Process] = [self.world.process(), self.world.process()]
        self.key: StreamKey = key_in_new_bucket(self.processes[0])
        self.content_type = JSON if is_json else BYTES
        self.processes[0].create(self.key, content_type=self.content_type)
        self.messages: list[bytes] = []
        self.retained = 0
        self.published = False
        if large:
            self.add(0, [b"7" * (INLINE_BYTES + 1)])

    # --- what changes the stream ----------------------------------------------------

    @rule(process=who, written=bodies, grouped=st.booleans())
    def append(self, process: int, written: list[bytes], grouped: bool) -> None:
        """In one batch as one JSON array, or as appends that share a write; or each alone."""
        self.add(process, written, grouped=grouped)

    def add(self, process: int, written: list[bytes], *, grouped: bool = True) -> None:
        stores = self.processes[process].stores
        written = [b'"' + each + b'"' for each in written] if self.content_type is JSON else written
        requests = [append_request(each, content_type=self.content_type) for each in written]
        for group in [requests] if grouped else [[each] for each in requests]:
            assert not any(isinstance(answer, ProtocolError) for answer in append(stores, self.key, group))
        self.messages += written

    @rule(process=who, place=st.integers(0, 200))
    def publish(self, process: int, place: int) -> None:
        self.put_snapshot(process, self.ends[place % len(self.ends)])

    def put_snapshot(self, process: int, offset: int) -> None:
        folded = self.messages[: self.ends.index(offset)]
        try:
            publish(self.processes[process], self.key, offset, orjson.dumps([m.decode() for m in folded]))
        except RetentionGone:
            assert offset < self.retained
        else:
            self.retained, self.published = offset, True

    @rule(process=who, hours=st.integers(0, 2))
    def sweep(self, process: int, hours: int) -> None:
        self.world.clock.advance(hours * HOUR_MS)
        sweep(self.processes[process].stores)

    # --- what is always true --------------------------------------------------------

    @property
    def ends(self) -> list[int]:
        return list(accumulate(map(self.stored_bytes, self.messages), initial=0))

    def stored_bytes(self, message: bytes) -> int:
        return len(message) + (self.content_type is JSON)

    @rule(process=who)
    def bootstrap(self, process: int) -> None:
        made = bootstrap(self.processes[process].stores, self.key)
        assert self.history(made) == self.messages
        assert (made.up_to_date, made.next_offset) == (True, self.ends[-1])
        assert (made.snapshot.offset if made.snapshot else None) == (
            self.retained if self.published else None
        )

    @rule(
        process=who,
        actions=st.lists(st.sampled_from("apsd"), min_size=1, max_size=4),
        after=st.integers(0, 3),
    )
    def bootstrap_while_the_other_works(self, process: int, actions: list[str], after: int) -> None:
        """Consistent with one version of the snapshot, and never short of what was there before."""
        before_it = len(self.messages)
        made = self.interleaved(process, actions, after, lambda stores: bootstrap(stores, self.key))
        history = self.history(made)
        assert history == self.messages[: len(history)]
        assert len(history) >= before_it
        assert made.next_offset == self.ends[len(history)]

    def interleaved(
        self, process: int, actions: list[str], after: int, use: Callable[[Any], Bootstrap]
    ) -> Bootstrap:
        dynamodb, calls, pending = self.processes[process].dynamodb, 0, list(actions)
        send = dynamodb.send

        def working(operation: str, body: bytes) -> tuple[int, bytes]:
            nonlocal calls
            calls += 1
            while calls > after and pending:
                self.work(1 - process, pending.pop())
            return send(operation, body)

        dynamodb.send = working
        try:
            return use(self.processes[process].stores)
        finally:
            dynamodb.send = send

    def work(self, process: int, action: str) -> None:
        match action:
            case "a":
                self.add(process, [b"61", b"62"])
            case "p":
                self.put_snapshot(process, self.ends[-1])
            case "s":
                self.put_snapshot(process, self.ends[len(self.ends) // 2])
            case _:
                # Less than an hour: what is superseded now is still there for whoever is on it.
                self.world.clock.advance(HOUR_MS // 8)
                sweep(self.processes[process].stores)

    def history(self, made: Bootstrap) -> list[bytes]:
        """The snapshot unfolded, and the updates."""
        first, *updates = made.parts
        folded = [text.encode() for text in orjson.loads(first.body)] if made.snapshot else []
        assert made.snapshot or (first.body, first.content_type) == (b"", "application/octet-stream")
        assert {part.content_type for part in updates} <= {self.content_type.value}
        return folded + [part.body for part in updates]

    @rule(process=who, room=st.integers(0, 5))
    def a_bootstrap_that_is_cut_goes_on_as_a_read(self, process: int, room: int) -> None:
        first = bootstrap(self.processes[process].stores, self.key).parts[0]
        limit = part_bytes(first.content_type, len(first.body)) + room * part_bytes("a/b", 20)
        with self.patch.context() as patch:
            patch.setattr(snapshots, "_LIMIT_BYTES", limit)
            made = bootstrap(self.processes[process].stores, self.key)
        assert sum(part_bytes(part.content_type, len(part.body)) for part in made.parts) <= limit
        assert made.up_to_date == (made.next_offset == self.ends[-1])
        history, offset, at_tail = self.history(made), made.next_offset, made.up_to_date
        while not at_tail:
            reading = read(self.processes[process].stores, self.key, offset)
            history += [message for _, message in messages(reading)]
            offset, at_tail = reading.page.end, reading.page.up_to_date
        assert history == self.messages

    @rule(process=who)
    def start_over(self, process: int) -> None:
        delete(self.processes[process].stores, self.key)
        self.processes[process].create(self.key, content_type=self.content_type)
        self.messages, self.retained, self.published = [], 0, False


def test_a_snapshot_and_its_bootstrap_are_always_the_whole_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory a game takes a twentieth of the time that it takes on an engine."""
    run_state_machine_as_test(
        type("Played", (Histories,), {"world": MemoryWorld(), "patch": monkeypatch}),
        settings=settings(
            max_examples=200, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )

"""A step that loses a reply of storage says what is right, or that the outcome is unknown; asked again it
ends as if nothing had happened. Nothing that was acknowledged is lost, and nothing lands twice.

Each life of `lives.py` is played with every reply, and then with a reply of each of its steps lost: to each
kind of call in turn. Whatever is cut of a reply, and wherever, its client says that there was no answer
(`test_cut_replies.py`, `test_cut_boto_replies.py`).
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.faults.lives import LIVES, Life, Step, packs_were_taken_in
from tests.support import make_world
from tidemark.aws.retry import Breaker, NoAnswer
from tidemark.local.engines import LocalServices
from tidemark.log.tails import RecentBatches, TailCache
from tidemark.protocol.errors import (
    BucketExists,
    BucketNotFound,
    Busy,
    OutcomeUnknown,
    StorageUnavailable,
    StreamGone,
    StreamNotFound,
)

#: What a client may be told: try again.
UNKNOWN = (OutcomeUnknown, StorageUnavailable, Busy)
#: What it may be told then: it has taken place. If it has not, somebody will see that.
SETTLED = (BucketExists, BucketNotFound, StreamGone, StreamNotFound)
#: The first word of a key says what kind of item it is.
KIND = re.compile(rb'"S":"(\w+)/')


@dataclass
class Loss:
    """Loses the reply to the first call of a kind, and with `always` to all later calls of its operation."""

    number: int
    always: bool
    is_on: bool = False
    operation: str | None = None
    kinds: set[object] = field(default_factory=set)
    has_struck: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        self.is_on, self.operation = True, None
        self.kinds.clear()

    def strikes(self, operation: str, kind: object) -> bool:
        with self.lock:
            is_next = self.is_on and (operation, kind) not in self.kinds and len(self.kinds) == self.number
            self.kinds.add((operation, kind))
            if is_next:
                self.operation, self.has_struck = operation, True
            return is_next or (self.is_on and self.always and operation == self.operation)

    def behind(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def sending(operation: str, *more: Any) -> Any:
            answer = send(operation, *more)
            found = KIND.search(more[-1])
            if self.strikes(operation, found and found[1]):
                raise NoAnswer("lost")
            return answer

        return sending

    def behind_boto(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def calling(*arguments: Any) -> Any:
            answer = call(*arguments)
            if self.strikes(name, None):
                raise StorageUnavailable
            return answer

        return calling


def play(services: LocalServices, steps: list[Step], loss: Loss) -> list[Any]:
    """What can be seen after each step, by the same process as if it had just begun."""
    world = make_world(services)
    process = world.process()
    life = Life(process, world)
    for client in (process.dynamodb, process.objects):
        client.send, client.sleep, client.breaker = loss.behind(client.send), lambda _: None, Breaker()
    blobs: Any = process.stores.blobs
    for name in ("stored", "compose", "delete", "delete_prefix"):
        setattr(blobs, name, loss.behind_boto(name, getattr(blobs, name)))
    seen = []
    for number, step in enumerate(steps):
        if step is packs_were_taken_in:
            continue  # Where a pack cannot be read to the end, it stays.
        if loss.always:
            life.step = number
            forget(life)
        perform(life, step, loss)
        forget(life)
        # One lost reply may confuse a reader. Where all are lost, it can only ask again.
        seen.append(look(life) if loss.always else perform(life, look, loss))
    return seen


def look(life: Life) -> list[Any]:
    """What can be seen. Two plays have other incarnations, and a bucket of another name."""
    visible = life.visible(life.process)
    return [each[1:] if isinstance(each, tuple) else getattr(each, "streams", each) for each in visible]


def forget(life: Life) -> None:
    life.process.stores = replace(life.process.stores, tails=TailCache(), recent=RecentBatches(1 << 24))


def perform(life: Life, step: Step, loss: Loss) -> object:
    life.kept.clear()
    loss.begin()
    try:
        return life.attempt(step)
    except UNKNOWN:
        pass
    except BucketNotFound:
        return None  # The call was repeated underneath, and met itself.
    finally:
        loss.is_on = False
    try:
        return life.attempt(step)
    except SETTLED:
        return None


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, no breaker opens."""
    monkeypatch.setattr("tidemark.aws.retry.SILENT_SECONDS", math.inf)


@pytest.mark.parametrize("always", [False, True], ids=["one reply", "every reply"])
@pytest.mark.parametrize("name", LIVES)
def test_a_step_whose_reply_is_lost_ends_as_if_it_had_not_been(
    services: LocalServices, name: str, always: bool
) -> None:
    steps = LIVES[name]
    expected = play(services, steps, Loss(-1, always))
    number, has_struck = 0, True
    while has_struck:
        loss = Loss(number, always)
        assert play(services, steps, loss) == expected, f"call {number}"
        number, has_struck = number + 1, loss.has_struck
    assert number > 1

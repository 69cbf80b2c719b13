"""No wake-up is lost: every order in which readers, writers and the trigger can take their steps.

A small model of who does what, explored without exception. Each step is one call to storage or
to the queue, so whatever two processes do at once is one of these orders. The ways to get it
wrong that suggest themselves are here too: the same checker must find what each of them loses.
`test_interleavings_of_the_code.py` does the same to the code itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pytest

APPENDS = 2
#: Each append's record is delivered to the trigger; the first one's twice, as may happen.
DELIVERIES = (0, 1, 0)


@dataclass(frozen=True)
class Rules:
    """How the parts behave. The defaults are what the code does."""

    reader: tuple[str, ...] = ("register", "read", "receive")
    #: What a reader does whose queue is gone.
    recovery: tuple[str, ...] = ("register", "read", "receive")
    #: Reads that may return what was there a while ago: `first`, `again`, `waiters`.
    stale: frozenset[str] = frozenset()
    #: A message names the append it is for. A reader that has read so many ignores it if it is an
    #: older one: older than how many?
    ignores_below: int = 0
    #: The queue may be removed under the reader at any moment, once.
    swept: bool = False


RIGHT = Rules()
RIGHT_SWEPT = Rules(swept=True)

WRONG = {
    "reads before it registers": Rules(reader=("read", "register", "receive")),
    "first read eventually consistent": Rules(stale=frozenset({"first"})),
    "read after the message eventually consistent": Rules(stale=frozenset({"again"})),
    "trigger's query eventually consistent": Rules(stale=frozenset({"waiters"})),
    "waits before it has read": Rules(reader=("register", "receive")),
    "takes the next append's message for an old one": Rules(ignores_below=1),
    "does not read after its queue was replaced": Rules(swept=True, recovery=("register", "receive")),
    "reads before it registers with the new queue": Rules(
        swept=True, recovery=("read", "register", "receive")
    ),
    "does not notice that its queue is gone": Rules(swept=True, recovery=()),
}


@dataclass(frozen=True)
class State:
    """Everything that the next step depends on. `copied_*` is what a stale read may see."""

    plan: tuple[str, ...]
    committed: int = 0
    copied_committed: int = 0
    #: The queue that the reader's waiter item names, 0 for none, and which one it listens to.
    registered: int = 0
    copied_registered: int = 0
    queue: int = 1
    swept: bool = False
    #: For which appends there are messages in the queue.
    messages: tuple[int, ...] = ()
    #: Of each delivery: None before its query, then the queue it found, then done (-1).
    deliveries: tuple[int | None, ...] = (None,) * len(DELIVERIES)
    seen: int = 0
    has_read: bool = False


def steps(rules: Rules, state: State) -> Iterator[tuple[str, State]]:
    """Every step that can come next, and what the world is after it."""
    yield from _reader_steps(rules, state)
    yield from _writer_steps(state)
    for index, found in enumerate(state.deliveries):
        yield from _trigger_steps(rules, state, index, found)
    if rules.swept and not state.swept:
        yield "sweep", replace(state, swept=True, queue=0, messages=())
    if state.copied_committed < state.committed:
        yield "copy log", replace(state, copied_committed=state.copied_committed + 1)
    if state.copied_registered != state.registered:
        yield "copy waiters", replace(state, copied_registered=state.registered)


def _writer_steps(state: State) -> Iterator[tuple[str, State]]:
    if state.committed < APPENDS:
        yield f"commit {state.committed}", replace(state, committed=state.committed + 1)


def _trigger_steps(rules: Rules, state: State, index: int, found: int | None) -> Iterator[tuple[str, State]]:
    append = DELIVERIES[index]
    if found == -1 or append >= state.committed:
        return
    if found is None:
        known = state.copied_registered if "waiters" in rules.stale else state.registered
        yield f"query for {append}", _delivered(state, index, known)
    else:
        # To a queue that is not there any more, or to none, nothing arrives.
        arrives = found == state.queue and found != 0
        messages = tuple(sorted((*state.messages, append))) if arrives else state.messages
        yield f"send for {append}", replace(_delivered(state, index, -1), messages=messages)


def _delivered(state: State, index: int, outcome: int) -> State:
    deliveries = state.deliveries
    return replace(state, deliveries=(*deliveries[:index], outcome, *deliveries[index + 1 :]))


def _reader_steps(rules: Rules, state: State) -> Iterator[tuple[str, State]]:
    step, rest = state.plan[0], state.plan[1:]
    if step == "register":
        queue = state.queue or 2
        yield "register", replace(state, plan=rest, queue=queue, registered=queue)
    elif step == "read":
        stale = ("again" if state.has_read else "first") in rules.stale
        seen = state.copied_committed if stale else state.committed
        yield "read", replace(state, plan=rest, seen=max(seen, state.seen), has_read=True)
    elif state.queue == 0:
        if rules.recovery:
            yield "find the queue gone", replace(state, plan=rules.recovery)
    else:
        for message in set(state.messages):
            yield f"receive {message}", _received(rules, state, message)


def _received(rules: Rules, state: State, message: int) -> State:
    messages = list(state.messages)
    messages.remove(message)
    ignored = message < state.seen + rules.ignores_below
    return replace(state, messages=tuple(messages), plan=("receive",) if ignored else ("read", "receive"))


@dataclass(frozen=True)
class Explored:
    orders: int
    #: The shortest order after which the reader waits for what is there already, if any.
    lost: tuple[str, ...] | None


def explore(rules: Rules) -> Explored:
    @cache
    def from_here(state: State) -> Explored:
        outcomes = [(name, from_here(after)) for name, after in steps(rules, state)]
        if not outcomes:
            return Explored(1, () if state.seen < state.committed else None)
        losses = [(name, *outcome.lost) for name, outcome in outcomes if outcome.lost is not None]
        return Explored(sum(outcome.orders for _, outcome in outcomes), min(losses, key=len, default=None))

    return from_here(State(plan=rules.reader))


@pytest.mark.parametrize("rules", [RIGHT, RIGHT_SWEPT], ids=["as it is", "queue swept meanwhile"])
def test_every_order_of_steps_wakes_the_reader(rules: Rules) -> None:
    """In every order the reader ends up with all appends, woken by messages alone."""
    explored = explore(rules)
    print(f"{explored.orders:,} orders")
    assert explored.lost is None, explored.lost
    assert explored.orders > 100_000


@pytest.mark.parametrize("name", WRONG)
def test_the_checker_finds_the_loss_of_each_wrong_rule(name: str) -> None:
    """A proof that could not fail would prove nothing."""
    lost = explore(WRONG[name]).lost
    print(f"{name}: {lost}")
    assert lost is not None


def test_the_checker_finds_an_append_between_read_and_registration() -> None:
    """The append commits between the two, and its trigger finds no registration."""
    lost = explore(WRONG["reads before it registers"]).lost
    assert lost is not None
    order = [lost.index(step) for step in ("read", "commit 0", "query for 0", "register")]
    assert order == sorted(order)

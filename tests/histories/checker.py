"""Is there an order of a history's operations that the model agrees with?

The search of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993) with Lowe's memory ("Testing
for Linearizability", 2017): take an operation that may come first, ask the model, go on with the rest, and
go back where that leads nowhere. The same set of operations in the same state is never tried twice.

An operation whose outcome is unknown may be taken at any time after its call, once, or be left out: a write
that was asked for and never answered may land late, or never."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tests.histories.history import Append, History, Operation, partition
from tests.histories.model import START, State, outcomes

#: More steps than any history of a hundred operations has taken so far, by a factor of a hundred.
MAX_STEPS = 5_000_000
_FEW_STEPS = 50_000


class Undecided(Exception):
    """The search was given up: the history counts as failed."""


@dataclass(frozen=True, slots=True)
class Violation:
    """No order fits. `longest` is the longest beginning of one that does, `stuck` what no continuation
    allows."""

    operations: tuple[Operation, ...]
    longest: tuple[Operation, ...]
    state: State
    stuck: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = ["Not linearizable. The longest order that fits:"]
        lines += [f"  {operation}" for operation in self.longest]
        lines += [f"Then the streams are {dict(self.state.streams)}, the buckets {set(self.state.buckets)};"]
        lines += ["none of these fits there:"]
        lines += [f"  {operation}" for operation in self.stuck]
        lines += ["All operations in the order of their calls:"]
        lines += [f"  {operation}" for operation in sorted(self.operations, key=lambda o: o.called)]
        return "\n".join(lines)


def check(history: History, max_steps: int = MAX_STEPS) -> Violation | None:
    """None where the history is linearizable. Raises Undecided."""
    for part in partition(history):
        read = b"".join(operation.answer.data or b"" for operation in part if operation.answer)
        # An append without an answer, which no read shows, may not have taken place: without it the search is
        # short, and an order that it finds counts.
        seen = [o for o in part if o.answer or not isinstance(o.request, Append) or o.request.body in read]
        with suppress(Undecided):
            if _Search(seen, min(_FEW_STEPS, max_steps)).run() is None:
                continue
        violation = _Search(part, max_steps).run()
        if violation is not None:
            return violation
    return None


@dataclass(frozen=True, slots=True)
class _Place:
    """How far an order has come: which operations are taken (a bit each), in which state that leaves the
    model."""

    taken: int
    state: State


class _Search:
    def __init__(self, operations: Sequence[Operation], max_steps: int) -> None:
        # In the order of their returns, which is most often right; those without one come last.
        never = max((operation.called for operation in operations), default=0) + 1
        self._never = never
        self._operations = sorted(operations, key=lambda o: (o.returned is None, o.returned or o.called))
        self._required = sum(
            1 << index for index, operation in enumerate(self._operations) if operation.returned is not None
        )
        self._steps_left = max_steps
        self._longest: list[int] = []
        self._longest_state = START

    def run(self) -> Violation | None:
        if not self._required:
            return None
        start = _Place(0, START)
        seen = {start}
        order: list[int] = []
        branches = [self._next(start)]
        while branches:
            step = next(branches[-1], None)
            if step is None:
                branches.pop()
                if order:
                    order.pop()
                continue
            index, place = step
            if place in seen:
                continue
            seen.add(place)
            order.append(index)
            if place.taken & self._required == self._required:
                return None
            if len(order) > len(self._longest):
                self._longest, self._longest_state = list(order), place.state
            branches.append(self._next(place))
        return self._violation()

    def _next(self, place: _Place) -> Iterator[tuple[int, _Place]]:
        """Every operation that may come next, with every state that the model may be in after it."""
        for index in self._candidates(place.taken):
            operation = self._operations[index]
            taken = place.taken | 1 << index
            for answer, state in outcomes(place.state, operation.request, operation.clock_ms):
                self._count()
                if operation.answer is None:
                    # What changes nothing need not have taken place.
                    if state != place.state:
                        yield index, _Place(taken, state)
                elif answer == operation.answer:
                    yield index, _Place(taken, state)

    def _candidates(self, taken: int) -> list[int]:
        """Those called before every other one that is left has returned."""
        left = [index for index in range(len(self._operations)) if not taken >> index & 1]
        returns = [self._operations[index].returned for index in left]
        first_return = min((place for place in returns if place is not None), default=self._never)
        return [index for index in left if self._operations[index].called < first_return]

    def _count(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise Undecided(f"no answer after so many steps, of {len(self._operations)} operations")

    def _violation(self) -> Violation:
        taken = sum(1 << index for index in self._longest)
        stuck = [self._operations[index] for index in self._candidates(taken)]
        longest = [self._operations[index] for index in self._longest]
        return Violation(tuple(self._operations), tuple(longest), self._longest_state, tuple(stuck))

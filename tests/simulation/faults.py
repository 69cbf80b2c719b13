"""What may become of a storage call on its way, chosen by the run's seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from tests.support import conflict, refusal
from tidemark.aws.retry import NoAnswer

#: `lost`: carried out, and the reply is lost. `dropped`: never arrives. `delayed`: no reply, and it arrives
#: later. `repeated`: carried out and answered, and a copy of it arrives later; nobody repeats what he was
#: told is refused. `throttled`, `conflicted`: refused, nothing done. `failed`: answered with an internal
#: error, carried out or not. `partly`: of a batch of writes some are left over. `silence`: this process
#: hears nothing for a while. `crash`: its process dies, before the call or behind it.
FAULTS: Final = (
    "lost",
    "dropped",
    "delayed",
    "repeated",
    "throttled",
    "conflicted",
    "failed",
    "partly",
    "silence",
    "crash",
)
_SHARES: Final = (0.0, 0.01, 0.04, 0.1)
#: Calls without a reply, one after the other: six in a row are an unknown outcome.
_SILENT_CALLS: Final = 7
_SLOW_DOWN: Final = (503, b"<Error><Code>SlowDown</Code></Error>")

Send = Callable[..., tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Shares:
    """How likely each fault is at each call."""

    of: tuple[tuple[str, float], ...]
    late: bool = True

    @classmethod
    def choose(cls, chance: random.Random, without: Collection[str] = ()) -> Shares:
        """`without`: faults that are left out. (The others then fall elsewhere.)"""
        shares = {fault: chance.choice(_SHARES) for fault in FAULTS}
        shares["silence"] /= 3
        shares["crash"] /= 6
        if chance.random() < 0.1:
            shares = dict.fromkeys(FAULTS, 0.0)
        shares |= dict.fromkeys(without, 0.0)
        return cls(tuple(shares.items()), "late" not in without)


class Line:
    """The way of one process to its storage."""

    def __init__(self, chance: random.Random, shares: Shares) -> None:
        self._chance = chance
        self._shares = shares
        self._silent_left = 0

    def fault(self) -> str | None:
        if self._silent_left:
            self._silent_left -= 1
            return self._chance.choice(("lost", "dropped", "delayed"))
        lot = self._chance.random()
        for fault, share in self._shares.of:
            if lot < share:
                return self._silence() if fault == "silence" else fault
            lot -= share
        return None

    def _silence(self) -> str | None:
        self._silent_left = self._chance.randint(1, _SILENT_CALLS)
        return self.fault()


def carry(
    fault: str | None, send: Send, request: tuple[Any, ...], copy_later: Callable[[], None]
) -> tuple[int, bytes]:
    """What a call comes to if its process lives. A request to the table has two parts, one to S3 three."""
    operation, is_s3 = request[0], len(request) == 3
    if fault == "throttled" or (fault == "conflicted" and is_s3):
        return _SLOW_DOWN if is_s3 else refusal("ProvisionedThroughputExceededException")
    if fault == "conflicted" and operation in {"GetItem", "Query", "BatchWriteItem"}:
        return refusal("ThrottlingException")
    if fault == "conflicted":
        return conflict(operation)
    if fault == "delayed":
        copy_later()
    if fault in {"dropped", "delayed"}:
        raise NoAnswer(fault)
    answer = send(*request)
    if fault == "repeated" and answer[0] == 200:
        copy_later()
    if fault == "lost":
        raise NoAnswer(fault)
    return answer

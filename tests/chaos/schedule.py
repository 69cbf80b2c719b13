"""Which fault happens when: a pure function of the seed, without an end."""

import enum
import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final


class Kind(enum.Enum):
    # Of processes.
    KILL = "kill -9"
    STOP = "stop and continue"
    RESTART = "restart"
    # Of the disk.
    DISK_FULL = "disk full"
    # Of connections.
    CUT_REPLY = "cut reply"
    CUT_REQUEST = "cut request"
    DELAY = "delay"
    HOLD = "hold, deliver late"
    REPEAT = "repeat late"
    SILENCE = "silence"
    # Of what a service answers.
    THROTTLE = "throttle"
    INTERNAL_ERROR = "internal error"


#: Processes, as `system.py` names them; the group is both at once.
SERVER, EMULATOR, GROUP = "server", "emulator", "group"
#: Connections, as `proxy.py` names them: to storage, from clients to the server, and from functions to the
#: management of clients' sockets.
DYNAMODB, S3, SQS, CLIENTS, SOCKETS = "dynamodb", "s3", "sqs", "clients", "sockets"

_Deck = tuple[tuple[Kind, str], ...]
#: What may happen where. A fault stands here as often as it comes up in one deal of the deck.
_PROCESS_DECK: Final[_Deck] = (
    *((Kind.KILL, where) for where in (SERVER, SERVER, SERVER, EMULATOR, GROUP)),
    *((Kind.STOP, where) for where in (SERVER, EMULATOR, GROUP)),
    (Kind.RESTART, SERVER),
)
_DISK_DECK: Final[_Deck] = ((Kind.DISK_FULL, SERVER), (Kind.DISK_FULL, EMULATOR))
#: With the embedded engine there is one process, and connections of clients alone.
_EMBEDDED_DECK: Final[_Deck] = (
    *((kind, SERVER) for kind in (Kind.KILL, Kind.KILL, Kind.KILL, Kind.STOP, Kind.RESTART)),
)
_EMBEDDED_DISK_DECK: Final[_Deck] = ((Kind.DISK_FULL, SERVER), (Kind.DISK_FULL, SERVER))
_CONNECTION_DECK: Final[_Deck] = (
    *((Kind.CUT_REPLY, where) for where in (DYNAMODB, DYNAMODB, DYNAMODB, S3, S3, SQS, CLIENTS)),
    *((Kind.CUT_REQUEST, where) for where in (DYNAMODB, S3, CLIENTS)),
    *((Kind.DELAY, where) for where in (DYNAMODB, S3, SQS, CLIENTS)),
    *((Kind.HOLD, where) for where in (DYNAMODB, DYNAMODB, DYNAMODB, S3, CLIENTS)),
    *((Kind.REPEAT, where) for where in (DYNAMODB, DYNAMODB, DYNAMODB, DYNAMODB, S3, CLIENTS)),
    *((Kind.SILENCE, where) for where in (DYNAMODB, S3)),
    *((Kind.THROTTLE, where) for where in (DYNAMODB, S3)),
    *((Kind.INTERNAL_ERROR, where) for where in (DYNAMODB, S3)),
    *((kind, SOCKETS) for kind in (Kind.CUT_REPLY, Kind.CUT_REQUEST, Kind.DELAY, Kind.HOLD, Kind.REPEAT)),
    *((kind, SOCKETS) for kind in (Kind.SILENCE, Kind.INTERNAL_ERROR)),
)
#: Of the requests that a fault of a connection may hit, it hits this share. Faults that cost a
#: caller a timeout are rare, those that cost nothing are not.
_SHARES: Final = {
    Kind.CUT_REPLY: (0.05, 0.5),
    Kind.CUT_REQUEST: (0.05, 0.3),
    Kind.DELAY: (0.05, 0.3),
    Kind.HOLD: (0.05, 0.3),
    Kind.REPEAT: (0.3, 1.0),
    Kind.SILENCE: (1.0, 1.0),
    Kind.THROTTLE: (0.1, 0.7),
    Kind.INTERNAL_ERROR: (0.05, 0.3),
}
#: How long each lasts, in seconds.
_LENGTHS: Final = {
    Kind.KILL: (0.0, 1.0),
    Kind.STOP: (0.5, 10.0),
    Kind.RESTART: (0.0, 0.5),
    Kind.DISK_FULL: (0.5, 3.0),
    Kind.SILENCE: (0.5, 7.0),
    Kind.REPEAT: (2.0, 6.0),
}
_OTHER_LENGTH: Final = (0.5, 3.0)
#: Between the ends of one fault of a track and the beginning of the next.
_PROCESS_PAUSE: Final = (3.0, 9.0)
_CONNECTION_PAUSE: Final = (0.1, 1.5)


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """`at` and `seconds` count from the campaign's start. `share` is the part of requests that is hit."""

    at: float
    seconds: float
    name: str
    where: str
    share: float = 1.0

    @property
    def kind(self) -> Kind:
        return Kind(self.name)


def make_schedule(seed: int, *, with_disk: bool = True, is_embedded: bool = False) -> Iterator[Fault]:
    """All faults in the order of their time, without an end. The same seed gives the same faults."""
    processes, disk, connections = _PROCESS_DECK, _DISK_DECK, _CONNECTION_DECK
    if is_embedded:
        processes, disk = _EMBEDDED_DECK, _EMBEDDED_DISK_DECK
        connections = tuple(card for card in _CONNECTION_DECK if card[1] == CLIENTS)
    processes += disk if with_disk else ()
    tracks = (
        _track(random.Random(f"{seed} processes"), processes, _PROCESS_PAUSE),
        _track(random.Random(f"{seed} connections"), connections, _CONNECTION_PAUSE),
        _track(random.Random(f"{seed} more connections"), connections, _CONNECTION_PAUSE),
    )
    return heapq.merge(*tracks)


def _track(
    chance: random.Random, deck: Sequence[tuple[Kind, str]], pause: tuple[float, float]
) -> Iterator[Fault]:
    """One fault after another. Every card of the deck comes up before one comes up again."""
    at = 0.0
    while True:
        for kind, where in chance.sample(deck, len(deck)):
            at += chance.uniform(*pause)
            seconds = chance.uniform(*_LENGTHS.get(kind, _OTHER_LENGTH))
            share = chance.uniform(*_SHARES.get(kind, (1.0, 1.0)))
            yield Fault(round(at, 3), round(seconds, 3), kind.value, where, round(share, 3))
            at += seconds

"""What writers and readers write down, for the judge. Times are seconds of one monotonic clock."""

import enum
import math
from dataclasses import dataclass, field


class Outcome(enum.IntEnum):
    #: No answer, or one that says that nobody knows: in the log once or not at all.
    UNKNOWN = 0
    #: In the log exactly once.
    ACKNOWLEDGED = 1
    #: Never in the log.
    REFUSED = 2


@dataclass(slots=True)
class Append:
    """One append: `messages` messages with the ids `writer:number:0`, `writer:number:1`, …

    `sent` is when it was sent first, `answered` when its outcome was known. `end` is the
    `Stream-Next-Offset` of the answer, -1 without one; for a duplicate it may lie further on
    than the append's own end, and `exact` is then false.
    """

    writer: str
    number: int
    messages: int
    sent: float
    answered: float = math.inf
    outcome: Outcome = Outcome.UNKNOWN
    end: int = -1
    exact: bool = True


@dataclass(slots=True)
class Page:
    """What a reader was given: bytes from `start` to `end`, as it was told, and their number and checksum.

    `known_end` is the highest offset that had been acknowledged when the reader asked: who is
    told that there is no more must have been given everything up to there.
    """

    reader: str
    start: int
    end: int
    checksum: int
    size: int
    known_end: int = 0
    up_to_date: bool = False


@dataclass(slots=True)
class StreamHistory:
    """One incarnation of one stream. `log` is the final catch-up from offset `base` on: JSON messages, each
    followed by a comma; None where nobody read it. `unread`: it was to be read, and has not been."""

    name: str
    appends: list[Append] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)
    base: int = 0
    log: bytes | None = None
    unread: bool = False
    #: The highest acknowledged offset so far.
    known_end: int = 0
    #: A fork's log begins with what it inherited: this many bytes, and whose they are.
    inherited: bytes = b""
    #: Writers of which every append is in the order of sending, unanswered ones too: producers, by their
    #: epochs and sequences, and writers with Stream-Seq.
    strict: set[str] = field(default_factory=set)

    def acknowledge(self, append: Append, answered: float, end: int, *, exact: bool) -> None:
        append.outcome, append.answered = Outcome.ACKNOWLEDGED, answered
        append.end, append.exact = end, exact
        self.known_end = max(self.known_end, end)


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    stream: str
    text: str


@dataclass(slots=True)
class Recordings:
    """Everything that a campaign has written down: what the judge has to look at, and what was seen to be
    wrong at once."""

    histories: list[StreamHistory] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    #: Snapshots, listings and the like that were compared.
    compared: int = 0

    def history(self, name: str) -> StreamHistory:
        made = StreamHistory(name)
        self.histories.append(made)
        return made


def message_id(writer: str, number: int, part: int) -> str:
    return f"{writer}:{number}:{part}"


def render_messages(append: Append, padding: int = 0) -> list[bytes]:
    """Each message as JSON. No message contains a comma."""
    pad = ":" + "x" * padding if padding else ""
    ids = (message_id(append.writer, append.number, part) for part in range(append.messages))
    return [f'"{name}{pad}"'.encode() for name in ids]


def render_body(messages: list[bytes]) -> bytes:
    """One message as it is, several as an array."""
    return messages[0] if len(messages) == 1 else b"[" + b",".join(messages) + b"]"


def read_message(message: bytes) -> tuple[str, int, int]:
    """Writer, number and part. Raises ValueError for what no writer sends."""
    writer, number, part, *_ = message.decode().strip('"').split(":")
    return writer, int(number), int(part)

"""A shared subscription gives each message of a stream to one worker.

    waiting ──take──▶ under way ──done──▶ done ──all before it are done──▶ committed
       ▲                  │
       └──release, or the lease is over: the next take gives the message again, counted once more

The state is an offset, before which every message is done, and a window of at most 1,000 messages behind it.
A receipt names a message and the count of its deliveries. The receipt of a late worker changes nothing once
another worker has the message.

Every function returns the next state. The caller commits it with one conditional write.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice, pairwise
from typing import Final, NamedTuple

import orjson

from tidemark.protocol.errors import InvalidSubscription

#: Most messages between the committed offset and the last message that was given.
WINDOW: Final = 1_000
#: Most bytes of messages in an answer, unless one message is larger.
TAKEN_BYTES: Final = 1024 * 1024
_RAW: Final = -15
_RECEIPT: Final = re.compile(r"([0-9a-f]{1,14})-([0-9a-f]{1,8})-([0-9a-f]{8})")


class SharedMessage(NamedTuple):
    """A message of the window, by its end offset. `until_ms` is the end of its lease, or None if no worker
    has the message. `key` is the hash of the message's key, or 0. Keys with one hash share an order."""

    end: int
    deliveries: int = 0
    until_ms: int | None = None
    done: bool = False
    key: int = 0

    def is_under_way(self, now_ms: int) -> bool:
        return self.until_ms is not None and now_ms < self.until_ms

    def finished(self) -> SharedMessage:
        return self._replace(done=True, until_ms=None, key=0)

    def is_open(self, now_ms: int) -> bool:
        return not self.done and not self.is_under_way(now_ms)


class Found(NamedTuple):
    """A message that was read from the stream."""

    end: int
    size: int
    key: int = 0


class Settlement(NamedTuple):
    """The receipts of a request."""

    done: Sequence[str] = ()
    release: Sequence[str] = ()
    reject: Sequence[str] = ()
    extend: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Window:
    """The state. `committed` is an offset in the stream `stream_incarnation`. `deliveries` counts the given
    messages. `back` is the distance from `end` to the start of its batch in bytes, or 0 between batches: a
    read from a batch's start takes one query."""

    stream_incarnation: str
    committed: int
    messages: tuple[SharedMessage, ...] = ()
    deliveries: int = 0
    back: int = 0

    @property
    def end(self) -> int:
        """The end of the messages that were looked at."""
        return self.messages[-1].end if self.messages else self.committed

    def lease_ends(self, now_ms: int) -> list[int]:
        return [each.until_ms for each in self.messages if each.until_ms and each.is_under_way(now_ms)]


def fit(window: Window, stream_incarnation: str, retained: int) -> Window:
    """Begin again if the stream was created anew, and skip what retention has removed."""
    if window.stream_incarnation != stream_incarnation:
        return Window(stream_incarnation, retained, deliveries=window.deliveries)
    if window.committed >= retained:
        return window
    kept = tuple(each for each in window.messages if each.end > retained)
    back = window.back if window.end - window.back >= retained else 0
    return _advance(replace(window, committed=retained, messages=kept, back=back))


def make_receipt(message: SharedMessage, tag: str) -> str:
    """`tag` stands for the incarnations of subscription and stream (`make_tag`)."""
    return f"{message.end:x}-{message.deliveries:x}-{tag}"


def make_tag(*incarnations: str) -> str:
    return f"{zlib.crc32('/'.join(incarnations).encode()):08x}"


@dataclass(slots=True)
class Settled:
    """`rejected` are messages that are given up now. `late` are the receipts that no longer hold."""

    window: Window
    rejected: list[SharedMessage] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    done: int = 0


def apply_receipts(window: Window, asked: Settlement, tag: str, until_ms: int) -> Settled:
    """Apply the receipts. A repeated receipt of a message that is done changes nothing and is not late. A
    lease that is over still counts until another worker has the message. Raises InvalidSubscription."""
    settled, messages = Settled(window), {each.end: each for each in window.messages}
    for verb, receipts in asked._asdict().items():
        finishes = verb in {"done", "reject"}
        for receipt in receipts:
            end, deliveries, its_tag = _parse_receipt(receipt)
            message = messages.get(end)
            if its_tag == tag and message is None and finishes and end <= window.committed:
                continue  # A repetition.
            if its_tag != tag or message is None or message.deliveries != deliveries or not deliveries:
                settled.late.append(receipt)
            elif message.done:
                settled.late.extend(() if finishes else (receipt,))
            elif verb == "done":
                settled.done += 1
                messages[end] = message.finished()
            elif verb == "reject":
                settled.rejected.append(message)
            elif verb == "release" or message.until_ms is not None:
                messages[end] = message._replace(until_ms=None if verb == "release" else until_ms)
            else:
                settled.late.append(receipt)
    settled.window = _advance(replace(window, messages=tuple(messages.values())))
    settled.rejected = list(dict.fromkeys(settled.rejected))
    return settled


def _parse_receipt(receipt: str) -> tuple[int, int, str]:
    match = _RECEIPT.fullmatch(receipt)
    if match is None:
        raise InvalidSubscription(f"{receipt[:60]!r} is not a receipt; send those of `take` as they came")
    return int(match[1], 16), int(match[2], 16), match[3]


def spent(window: Window, max_attempts: int, now_ms: int) -> list[SharedMessage]:
    """The messages that were given `max_attempts` times, and are not done."""
    return [each for each in window.messages if each.is_open(now_ms) and each.deliveries >= max_attempts]


def end_attempts(window: Window, ends: Collection[int], kept: Collection[int]) -> Window:
    """Mark the messages at `ends` as done, and let those at `kept` be given again."""
    messages = (
        each.finished() if each.end in ends else each._replace(until_ms=None) if each.end in kept else each
        for each in window.messages
    )
    return _advance(replace(window, messages=tuple(messages)))


def _advance(window: Window) -> Window:
    """Move the committed offset behind the messages that are done."""
    count = next((at for at, each in enumerate(window.messages) if not each.done), len(window.messages))
    if not count:
        return window
    return replace(window, committed=window.messages[count - 1].end, messages=window.messages[count:])


def read_from(window: Window, now_ms: int) -> int | None:
    """Return the offset from which to read the messages to give, or None if no message can be given."""
    start, busy = window.committed, set[int]()
    for each in window.messages:
        if each.is_open(now_ms) and each.key not in busy:
            return start
        if each.key and not each.done:
            busy.add(each.key)
        start = each.end
    return start if len(window.messages) < WINDOW else None


def give(
    window: Window, found: Sequence[Found], read: range, *, now_ms: int, until_ms: int, most: int
) -> tuple[Window, list[SharedMessage]]:
    """Give up to `most` of the messages that were found in the range `read`. A message waits while an earlier
    one of its key is not done. A message of the window that the read should have found no longer exists:
    compaction has removed it."""
    sources, busy, given_bytes = {each.end: each for each in found}, set[int](), 0
    messages, given = list[SharedMessage](), list[SharedMessage]()
    new = (SharedMessage(each.end, key=each.key) for each in found if each.end > window.end)
    for message in (*window.messages, *islice(new, max(0, WINDOW - len(window.messages)))):
        source, kept = sources.get(message.end), message
        if source and message.is_open(now_ms) and message.key not in busy:
            given_bytes += source.size
            if len(given) < most and (not given or given_bytes <= TAKEN_BYTES):
                kept = message._replace(deliveries=message.deliveries + 1, until_ms=until_ms)
                given.append(kept)
            elif message.end > window.end:
                break
        elif source is None and read.start < message.end <= read.stop and message.is_open(now_ms):
            kept = message.finished()
        if message.key and not kept.done:
            busy.add(message.key)
        messages.append(kept)
    deliveries = window.deliveries + len(given)
    return _advance(replace(window, messages=tuple(messages), deliveries=deliveries)), given


def hash_key(digest: bytes) -> int:
    """A number from 1 to 2,097,151, which takes at most three bytes."""
    return zlib.crc32(digest) % (2**21 - 1) + 1


def encode_window(window: Window) -> bytes:
    """Columns of JSON, deflated, because DynamoDB bills a write by the kilobyte."""
    messages = window.messages
    first = min(filter(None, (each.until_ms for each in messages)), default=0)
    sizes = [later - earlier for earlier, later in pairwise((window.committed, *(m.end for m in messages)))]
    leases = [None if each.until_ms is None else each.until_ms - first for each in messages]
    counts, states = [each.deliveries for each in messages], [int(each.done) for each in messages]
    keys = [each.key for each in messages]
    columns = [window.deliveries, window.back, first, sizes, counts, leases, states, keys]
    return zlib.compress(orjson.dumps(columns), wbits=_RAW)


def decode_window(stream_incarnation: str, committed: int, encoded: bytes) -> Window:
    columns = orjson.loads(zlib.decompress(encoded, _RAW))
    deliveries, back, first, sizes, counts, leases, states, keys = columns
    ends = list(accumulate(sizes, initial=committed))[1:]
    until_ms = [None if lease is None else first + lease for lease in leases]
    rows = zip(ends, counts, until_ms, map(bool, states), keys, strict=True)
    return Window(stream_incarnation, committed, tuple(map(SharedMessage._make, rows)), deliveries, back)

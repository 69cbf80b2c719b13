"""The workers of a shared subscription: take messages, and settle what was taken.

`shared.py` describes the states. A take with receipts is one conditional write, and one that changes nothing
writes nothing. A worker that loses a race decides again on the new state.
"""

from __future__ import annotations

import asyncio
import logging
import time
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final, NamedTuple

import orjson

from tidemark.log.read import Page, load_stream
from tidemark.log.records import StreamRecord
from tidemark.observability.metrics import PROCESS, SHARED_DONE, SHARED_LATE, SHARED_TAKEN
from tidemark.protocol.errors import SubscriptionNotFound
from tidemark.protocol.messages import ContentType
from tidemark.protocol.offset import render_offset
from tidemark.protocol.producer import Claim
from tidemark.service.load import require_live
from tidemark.service.read import Reading, read_record
from tidemark.service.stores import MEGABYTE, Stores
from tidemark.subscriptions import lifecycle, shared, storage
from tidemark.subscriptions.configuration import SubscriptionKind
from tidemark.subscriptions.deliveries import append_event
from tidemark.subscriptions.pending import MAX_HOPS, hops_of, stream_key_of
from tidemark.subscriptions.records import SharedRecord, SubscriptionRecord
from tidemark.subscriptions.shared import Settlement, SharedMessage, Window
from tidemark.wake.follow import LiveRead, Process

#: Bytes of a page for each message asked for, and the least. The rest of a query's result stays in memory.
_MESSAGE_BYTES: Final = 1024
_LEAST_BYTES: Final = 64 * 1024
#: Largest string in an answer.
_LARGEST_BYTES: Final = 3 * MEGABYTE
#: While messages are under way, a waiting take looks again after this time.
_LOOK_SECONDS: Final = 1.0
#: Most subscriptions whose stream a process remembers, which saves a call for each take.
_MOST_REMEMBERED: Final = 10_000

_log = logging.getLogger("tidemark")


class Take(NamedTuple):
    """What a worker settles and asks for; `most` is 0 for a worker that only settles. `lease_ms` None means
    the lease of the subscription. `check_read` raises unless the worker may read the stream."""

    settlement: Settlement = Settlement()
    most: int = 0
    lease_ms: int | None = None
    check_read: Callable[[str], object] = str


class Given(NamedTuple):
    """A message that a worker was given; `data` is as stored, for JSON without the comma."""

    message: SharedMessage
    data: bytes
    receipt: str


@dataclass(frozen=True, slots=True)
class Taken:
    """`place` is the tail, if the read has reached it and more may follow. `goes_on`: the read has found only
    messages that must wait, and the next one begins behind them."""

    content_type: ContentType
    window: Window
    until_ms: int
    given: Sequence[Given] = ()
    late: Sequence[str] = ()
    closed: bool = False
    place: Reading | None = None
    goes_on: bool = False


async def take(
    process: Process, turn: asyncio.Lock, subscription_id: str, asked: Take, wait_seconds: float
) -> Taken:
    """Settle and take; wait for a message if there is none. `turn` lets one take of the subscription run at a
    time in this process: the others would lose the race. Raises as `take_now`."""
    deadline, late = time.monotonic() + wait_seconds, list[str]()
    while True:
        async with turn:
            taken = await process.run(partial(take_now, process.stores, subscription_id, asked))
        late += taken.late
        asked, left = asked._replace(settlement=Settlement()), deadline - time.monotonic()
        if taken.given or taken.closed or left <= 0:
            return replace(taken, late=late)
        if taken.window.messages:  # A lease may end, and another process may settle.
            now_ms = process.stores.clock_ms()
            left = min(
                left, _LOOK_SECONDS, *((end - now_ms) / 1000 for end in taken.window.lease_ends(now_ms))
            )
        if taken.place is not None:
            with closing(LiveRead(process, taken.place)) as live:
                await live.next(time.monotonic() + left)
        elif not taken.goes_on:
            await asyncio.sleep(left)


def take_now(stores: Stores, subscription_id: str, asked: Take) -> Taken:
    """Settle and take at once. Raises SubscriptionNotFound, InvalidSubscription, StreamNotFound, Busy."""

    def step() -> Taken:
        record, state, found = _load(stores, subscription_id)
        if asked.most:
            asked.check_read(record.configuration.streams[0])
        stream, now_ms = require_live(found), stores.clock_ms()
        lifecycle.check_key(record.configuration, stream)
        until_ms = now_ms + (asked.lease_ms or record.configuration.lease_ttl_ms)
        tag = shared.make_tag(record.incarnation, stream.incarnation)
        window = shared.fit(state.window, stream.incarnation, stream.retained)
        settled = shared.apply_receipts(window, asked.settlement, tag, until_ms)
        window = _give_up(stores, record, stream, settled, now_ms)
        taken = Taken(stream.content_type, window, until_ms, late=settled.late)
        start = shared.read_from(window, now_ms) if asked.most else None
        if start is not None:
            size = min(max(_LEAST_BYTES, asked.most * _MESSAGE_BYTES), shared.TAKEN_BYTES)
            is_new = start == window.end
            begin, ahead_bytes = (start - window.back, MEGABYTE) if is_new else (start, 0)
            page = read_record(stores, stream, begin, size, ahead_bytes).page
            taken = _give(
                taken, stream, page, asked, pointer=record.configuration.key, now_ms=now_ms, tag=tag
            )
        if taken.window != state.window:
            storage.commit_shared(stores.table, state, taken.window, stores.new_id())
        PROCESS.add(SHARED_TAKEN, len(taken.given))
        PROCESS.add(SHARED_DONE, settled.done)
        PROCESS.add(SHARED_LATE, len(settled.late))
        return taken

    return lifecycle.until_committed(stores, step)


def _load(
    stores: Stores, subscription_id: str
) -> tuple[SubscriptionRecord, SharedRecord, StreamRecord | None]:
    """Load a shared subscription, its state and its stream: one call, or two if this process does not know
    the stream. Raises SubscriptionNotFound, InvalidSubscription."""
    known = stores.shared_streams.get(subscription_id)
    record, state, stream = storage.load_shared(stores.table, subscription_id, known)
    if record is None:
        raise SubscriptionNotFound
    lifecycle.require_kind(record, SubscriptionKind.SHARED)
    if not record.active:
        lifecycle.activate(stores, record)
        return _load(stores, subscription_id)
    if state is None or state.incarnation != record.incarnation:
        raise SubscriptionNotFound  # It is being deleted.
    key = stream_key_of(record.configuration.streams[0])
    if key != known:
        if len(stores.shared_streams) >= _MOST_REMEMBERED:
            stores.shared_streams.clear()
        stores.shared_streams[subscription_id] = key
        stream = load_stream(stores.table, key)
    return record, state, stream


def _give(
    taken: Taken, stream: StreamRecord, page: Page, asked: Take, *, pointer: str | None, now_ms: int, tag: str
) -> Taken:
    """Give messages of the page, by the order of their keys if the subscription has a `pointer`."""
    before, data, room = taken.window, dict[int, bytes](), asked.most if pointer is None else shared.WINDOW
    for end, message in _messages(page, before.committed, is_json=stream.content_type.is_json):
        room -= end > before.end
        if room < 0:
            break
        data[end] = message
    hashed = _key_hash(pointer) if pointer is not None else lambda _: 0
    found = [shared.Found(end, len(each), hashed(each)) for end, each in data.items()]
    read = range(page.start, max(data) if room < 0 else page.end)
    window, messages = shared.give(
        before, found, read, now_ms=now_ms, until_ms=taken.until_ms, most=asked.most
    )
    end, at_tail = window.end, page.up_to_date and window.end == page.end
    if page.start <= end <= page.end:
        begin = next((batch.start for batch in page.batches if batch.start < end < batch.end), end)
        window = replace(window, back=end - begin)
    return replace(
        taken,
        window=window,
        given=[Given(each, data[each.end], shared.make_receipt(each, tag)) for each in messages],
        closed=at_tail and page.closed and not window.messages,
        place=Reading(stream, Page(page.end, (), up_to_date=True)) if at_tail and not page.closed else None,
        goes_on=window != before,
    )


def _messages(page: Page, start: int, *, is_json: bool) -> Iterator[tuple[int, bytes]]:
    """Yield the end offset and the data of each message of the page that ends behind `start`."""
    for batch in page.batches:
        ends, stored = batch.message_ends(), batch.data or b""
        first = bisect_right(ends, max(start, page.start))
        at = sum(batch.lengths[:first])
        for length, end in zip(batch.lengths[first:], ends[first:], strict=True):
            yield end, stored[at : at + length - is_json]  # Without the comma.
            at += length


@cache
def _key_hash(pointer: str) -> Callable[[bytes], int]:
    from tidemark.protocol.message_key import make_key_rule  # msgspec, which most processes do not need.

    rule = make_key_rule(pointer)
    return lambda message: shared.hash_key(keyed[0]) if (keyed := rule(message)) else 0


def _give_up(
    stores: Stores, record: SubscriptionRecord, stream: StreamRecord, settled: shared.Settled, now_ms: int
) -> Window:
    """Write the dead letters of messages that were rejected or given too often, and mark these as done. A
    letter is written once: its producer's id names the message. If it cannot be written, the message is given
    again."""
    window, asked, kept = settled.window, record.configuration, set[int]()
    dead = dict.fromkeys(settled.rejected, "a worker rejected it")
    if asked.max_attempts is not None:
        for message in shared.spent(window, asked.max_attempts, now_ms):
            dead.setdefault(message, f"no worker was done with it in {message.deliveries} deliveries")
    for message, why in dead.items():
        if asked.dead_letter_stream is None:
            break
        letter = _make_letter(stores, stream, window, message)
        claim = Claim(f"dead-{record.incarnation}-{stream.incarnation}-{message.end}", 0, 0)
        if letter["hops"] > MAX_HOPS:
            _log.warning("%s gives up the third dead letter in a row: %s", record.subscription_id, why)
        elif not append_event(stores, record, asked.dead_letter_stream, claim, {**letter, "error": why}):
            kept.add(message.end)
    return shared.end_attempts(window, {each.end for each in dead} - kept, kept) if dead else window


def _make_letter(
    stores: Stores, stream: StreamRecord, window: Window, message: SharedMessage
) -> dict[str, Any]:
    """The dead letter of a message, with the message's data if it still exists."""
    content_type, end = stream.content_type, message.end
    start = max((each.end for each in window.messages if each.end < end), default=window.committed)
    page = read_record(stores, stream, start, 1).page
    data, hops = dict(_messages(page, start, is_json=content_type.is_json)).get(end), 0
    with suppress(orjson.JSONDecodeError):
        hops = hops_of(orjson.loads(data or b""))
    return {
        "type": "dead-letter",
        "stream": stream.key.stream_id,
        "offset": render_offset(end),
        "attempts": message.deliveries,
        "hops": 1 + hops,
        **({} if data is None else render_data(content_type, data)),
    }


def render_data(content_type: ContentType, data: bytes) -> dict[str, object]:
    """The members of an answer for a message's data: a JSON value, or a string with its encoding. A string
    that may not fit a response of Lambda, which is base64 itself, is left out."""
    if content_type.is_json:
        return {"data": orjson.Fragment(data)}
    if len(data) > _LARGEST_BYTES:
        return {"data": None, "encoding": "omitted"}
    with suppress(UnicodeDecodeError):
        if content_type.is_text:
            return {"data": data.decode(), "encoding": "text"}
    return {"data": b64encode(data).decode(), "encoding": "base64"}

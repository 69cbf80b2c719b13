"""Calls webhooks with a bounded response, and fairly. A call's deadline includes the DNS lookup.

Fairness between webhooks: receivers that hang do not delay others.

A first call has a timeout of a second. Two bounds hold for slower receivers:

    slots   for all processes: a slow call delays its whole batch of notices, so it needs one of a few slots,
            two per host
    turns   in this process: only a few deliveries compute at once; streams with the fewest deliveries under
            way come first

Slots are items of the table because all processes share them. Turns are in memory because every notice needs
one.

With slots alone, a delivery waited 2.5 to 13.7 s beside a thousand silent receivers. A call without a free
slot is retried with back-off and does not wait, because a waiting thread is a busy thread.
"""

from __future__ import annotations

import asyncio
import math
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from tidemark.log.schema import UNTIL_MS
from tidemark.log.table import IF_ABSENT, AnyOf, Compared, ConditionFailed, equals
from tidemark.outbound.request import RequestBody, Url, is_public
from tidemark.protocol.errors import WebhookUrlRejected
from tidemark.service.stores import Stores
from tidemark.subscriptions.configuration import NOT_PUBLIC
from tidemark.subscriptions.notices import Appended, Notice
from tidemark.subscriptions.records import WRITE_ID, slow_slot_key
from tidemark.subscriptions.state import DeliveryFailure

_T = TypeVar("_T")

#: Timeout of a call, in milliseconds, if the receiver is not known to be slow.
FIRST_MS: Final = 1_000
#: Timeout of a call to a slow receiver, in milliseconds; a shorter lease shortens it.
WEBHOOK_MS: Final = 10_000
#: Milliseconds after the timeout of a call. An attempt without a result by then has died.
SPARE_MS: Final = 5_000
#: Calls of slow webhooks at once, in all processes together. A slow call may delay a whole batch of notices,
#: so these are half of the template's MaximumConcurrency, and quick receivers have the other half.
SLOW_SLOTS: Final = 50
#: Slots for the calls of one host.
SLOTS_OF_A_HOST: Final = 2
#: Later deliveries that may pass a waiting one, for each delivery of its stream that is under way.
_PASSED_BY: Final = 1000
#: A retry has the priority of a delivery whose stream has this many under way.
_LATER: Final = 10
#: Most bytes read of a response.
MAX_RESPONSE_BYTES: Final = 64 * 1024


class DeliveryFailed(Exception):
    """The webhook was not reached, or did not answer. The message contains no secret."""

    def __init__(self, message: str, failure: DeliveryFailure = DeliveryFailure.REFUSED) -> None:
        super().__init__(message)
        self.failure = failure


class WebhookResponse(NamedTuple):
    status: int
    body: bytes


def call_webhook(
    url: Url, body: bytes, headers: Mapping[str, str], timeout_seconds: float
) -> WebhookResponse:
    """Raises DeliveryFailed, and WebhookUrlRejected if an address is not public."""
    return asyncio.run(_call(url, body, headers, timeout_seconds))


async def _call(url: Url, content: bytes, headers: Mapping[str, str], seconds: float) -> WebhookResponse:
    import httpcore  # Most processes call no webhook.
    from anyio.lowlevel import checkpoint

    from tidemark.outbound.connection import WEBHOOK_NAMES, AddressRefused, NotConnected, Timeouts, answered

    body, is_local, received = RequestBody(content), url.scheme == "http", bytearray()
    fixed = {"Content-Length": str(len(content)), "Connection": "close", "Accept-Encoding": "identity"}
    answering = answered(
        url,
        "POST",
        {**headers, **fixed, "Accept": "application/json"}.items(),
        body,
        names=WEBHOOK_NAMES,
        may_connect=(lambda address: address.is_loopback) if is_local else is_public,
        timeouts=Timeouts(seconds, seconds, seconds),
    )
    await checkpoint()  # Loads the modules that a connection needs, before the deadline counts.
    try:
        async with asyncio.timeout(seconds), answering as answer:
            async for part in answer.aiter_stream():
                received += part
                if len(received) >= MAX_RESPONSE_BYTES:
                    break
            return WebhookResponse(answer.status, bytes(received[:MAX_RESPONSE_BYTES]))
    except AddressRefused:
        message = "A local webhook must lead to this machine" if is_local else NOT_PUBLIC
        raise WebhookUrlRejected(message) from None
    except NotConnected as error:
        failure, reason = DeliveryFailure.REFUSED, str(error)
    except (TimeoutError, httpcore.TimeoutException):
        is_connected = not body.content  # The body is taken once the connection is there.
        failure = DeliveryFailure.SILENT if is_connected else DeliveryFailure.REFUSED
        reason = "no answer in time" if is_connected else "no connection in time"
    except (OSError, httpcore.NetworkError, httpcore.ProtocolError) as error:
        failure, reason = DeliveryFailure.DROPPED, type(error).__name__
    raise DeliveryFailed(f"{url.authority}: {reason}", failure)


class Fairness:
    """`places`: most deliveries that compute at once. Lambda needs no limit: a process has few deliveries."""

    def __init__(self, places: float = math.inf) -> None:
        #: The slots that this process holds: the table need not be asked whether they are free.
        self._held: set[int] = set()
        self._free = places
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, Callable[[], object]]] = []
        self._came = 0
        self._under_way: Counter[str] = Counter()

    @contextmanager
    def slot(self, stores: Stores, url: str) -> Iterator[bool]:
        """Take a slot for a call of this URL's host, and free it at the end. Yields whether one was free."""
        first, taken_by = zlib.crc32(urlsplit(url).netloc.encode()), stores.new_id()
        slots = {(first + more) % SLOW_SLOTS for more in range(SLOTS_OF_A_HOST)} - self._held
        slot = next((slot for slot in slots if _take_slot(stores, slot, taken_by)), None)
        if slot is None:
            yield False
            return
        self._held.add(slot)
        try:
            yield True
        finally:
            self._held.discard(slot)
            with suppress(ConditionFailed):  # The slot has timed out, and another call has taken it.
                stores.table.delete(slow_slot_key(slot), equals(WRITE_ID, taken_by))

    # Turns: deliveries of a stream with few others under way come first, then those of a stream with many
    # subscribers, then retries. A bounded number of later deliveries may pass a waiting one.

    def begin(self, notice: Notice, start: Callable[[], object]) -> None:
        """Call `start` at the notice's turn. The caller calls `end` after the work."""
        ahead = _LATER
        if isinstance(notice, Appended):
            with self._lock:
                ahead = min(self._under_way[notice.mark.path], _LATER - 1)
                self._under_way[notice.mark.path] += 1
        self._take(ahead, start)

    def end(self, notice: Notice) -> None:
        if isinstance(notice, Appended):
            with self._lock:
                self._under_way[notice.mark.path] -= 1
                self._under_way += Counter()  # Removes the streams at zero.
        self._give()

    def meanwhile(self, call: Callable[[], _T]) -> _T:
        """Give the turn up during a webhook's call. Work after a failed call has the priority of a retry."""
        self._give()
        ahead = _LATER
        try:
            response = call()
            ahead = 0
            return response
        finally:
            goes_on = threading.Event()
            self._take(ahead, goes_on.set)
            goes_on.wait()

    def _take(self, ahead: int, start: Callable[[], object]) -> None:
        with self._lock:
            self._came += 1
            if not self._free:
                heappush(self._waiting, (self._came + _PASSED_BY * ahead, self._came, start))
                return
            self._free -= 1
        start()

    def _give(self) -> None:
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            *_, start = heappop(self._waiting)
        start()


def _take_slot(stores: Stores, slot: int, taken_by: str) -> bool:
    """Take the slot; returns whether it was free. A dead process's slot is free after the longest call."""
    now_ms = stores.clock_ms()
    until_ms = now_ms + WEBHOOK_MS + SPARE_MS
    item = slow_slot_key(slot) | {WRITE_ID: {"S": taken_by}, UNTIL_MS: {"N": str(until_ms)}}
    try:
        stores.table.put(item, AnyOf(IF_ABSENT, Compared(UNTIL_MS, "<=", now_ms)))
    except ConditionFailed:
        return False
    return True

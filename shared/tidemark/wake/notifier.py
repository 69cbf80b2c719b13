"""The notifier: sends wake messages for the table's stream records to the queues of waiting processes, and
messages to the sockets that watch; and the sweep, which removes leftover registrations and queues.

A record only names the log that has grown. The order of records and duplicates therefore do not matter, and
every batch of records may be processed again.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from tidemark.aws.http import Account, AwsRequest, BlockingHttp, Http
from tidemark.aws.retry import Attempts, Failure, RetryPolicy
from tidemark.aws.sqs import QueueGone, Queues
from tidemark.log.due import TURN_MS
from tidemark.log.read import load_last, load_news
from tidemark.log.records import Batch, Waiter
from tidemark.log.schema import WAIT_SHARDS, ItemWrite, decode_batch_start, is_log_pk
from tidemark.log.table import Table
from tidemark.log.waiters import all_waiters, load_waiters, remove_lapsed, remove_waiters
from tidemark.observability.metrics import FAULTS, Meter
from tidemark.protocol import socket
from tidemark.protocol.errors import StreamNotFound
from tidemark.protocol.tail import Tail
from tidemark.service.stores import Threads
from tidemark.wake.queue import WakeMessage, encode_message

SOCKET_SEND_SECONDS: Final = 3.0
#: Three attempts within a second, if API Gateway answers at once: other waiters must not wait for long.
_PROMPT: Final = RetryPolicy(3, 3.0, lambda failed: 0.2 * failed)


class SocketGone(Exception):
    """The client or API Gateway has closed the connection."""


class SocketUnavailable(Failure):
    """API Gateway did not answer, or refused. The cause or the message has the reason."""


class SocketApi:
    """A WebSocket API, whose connections are named by ids. Safe to share between threads. A stream may have
    ten thousand readers, so this uses `aws/http.py` and not boto3, which is slower."""

    def __init__(self, http: Http, stage: str) -> None:
        self._http = http
        self._path = f"{stage}/@connections/"
        self.meter = Meter()
        self.sleep: Callable[[float], None] = time.sleep

    def send(self, connection_id: str, frames: Sequence[str]) -> None:
        """Send each frame with a call. Raises SocketGone, SocketUnavailable, maybe after some frames.

        A connection that does not take frames, such as one whose client does not read, is closed, so that it
        does not delay other waiters. A client that reconnects watches again and misses nothing."""
        path = self._path + quote(connection_id, safe="")
        try:
            for frame in frames:
                self._ask(AwsRequest("POST", path, {}, frame.encode()))
        except SocketUnavailable as failure:
            self.meter.add(FAULTS)
            self._ask(AwsRequest("DELETE", path, {}))
            raise SocketGone from failure

    def _ask(self, request: AwsRequest) -> None:
        attempts = Attempts(self.sleep, time.monotonic, _PROMPT)
        while True:
            try:
                status, answer = self._http(request)
                if status == HTTPStatus.GONE:
                    raise SocketGone
                if status in {HTTPStatus.OK, HTTPStatus.NO_CONTENT}:
                    return
                refusal = SocketUnavailable(f"status {status}: {answer[:200].decode(errors='replace')}")
                refusal.retryable = status >= 500 or status == HTTPStatus.TOO_MANY_REQUESTS
                raise refusal
            except Failure as failure:
                if not attempts.go_on_after(failure):
                    raise SocketUnavailable(str(failure)) from failure


def connect_sockets(account: Account, endpoint: str) -> SocketApi:
    """`endpoint` is the URL of the API's stage."""
    service = account.service("execute-api", endpoint)
    return SocketApi(BlockingHttp(service, SOCKET_SEND_SECONDS), urlsplit(endpoint).path)


#: Many threads, because a stream may have a thousand queues, and a sending thread mostly waits.
_THREADS: Final = 32
#: Milliseconds after which no more sockets get messages, because other streams wait for the same batch of
#: records. The batch is retried.
SOCKETS_MS: Final = 15_000

Failures = dict[str, Exception]
"""Errors by log. The records of these logs must be delivered again."""


def message_from_write(write: ItemWrite) -> WakeMessage | None:
    """The wake message for a new batch; None for other writes. Raises ValueError for an unknown sort key."""
    if write.event != "INSERT" or not is_log_pk(write.pk):
        return None
    return WakeMessage(write.pk, decode_batch_start(write.sk))


def newest_of(messages: Iterable[WakeMessage]) -> list[WakeMessage]:
    """The message with the highest offset of each log, which replaces the earlier ones."""
    return list({each.log_pk: each for each in sorted(messages, key=lambda each: each.start)}.values())


class _Wake(NamedTuple):
    """A wake for a waiter. `tail` is None for queues, and if the stream has ended. `news` are the data before
    the tail, if the waiter wants data."""

    log_pk: str
    start: int
    waiter: Waiter
    tail: Tail | None = None
    news: socket.RenderedNews | None = None

    def for_socket(self) -> socket.Message:
        name = self.waiter.name or ""
        if self.tail is not None:
            return socket.news_message(name, self.tail, self.news)
        ended = StreamNotFound()
        return socket.error_message(name, ended.status, ended.message)

    def is_last_of_a_watch(self) -> bool:
        return self.waiter.is_socket and (self.tail is None or self.tail.closed)


class Notifier:
    """Wakes the waiters for new batches. The cost does not grow with the number of records: a query for each
    log, another one if a socket watches the log, and a send for each queue and socket. `sockets` is None
    without a WebSocket API."""

    def __init__(
        self, table: Table, queues: Queues, clock_ms: Callable[[], int], sockets: SocketApi | None = None
    ) -> None:
        self._table = table
        self._queues = queues
        self._sockets = sockets
        self._clock_ms = clock_ms
        self._threads = Threads(_THREADS)

    def notify(self, messages: Iterable[WakeMessage]) -> Failures:
        """Wake all waiters of these logs."""
        until_ms = self._clock_ms() + SOCKETS_MS
        failures: Failures = {}
        messages = list(messages)
        firsts = {each.log_pk: each.start for each in sorted(messages, key=lambda each: -each.start)}
        found = self._threads.each(
            lambda message: self._load(message, firsts[message.log_pk], failures), newest_of(messages)
        )
        by_receiver: dict[str, list[_Wake]] = defaultdict(list)
        for wake in chain.from_iterable(found):
            by_receiver[wake.waiter.address].append(wake)
        # Queues come first: a queue serves all readers of a process, which must not wait for sockets that
        # hang. The order is random, so that a retry does not run out of time at the same sockets.
        receivers = sorted(
            by_receiver.values(), key=lambda wakes: (wakes[0].waiter.is_socket, random.random())
        )
        self._threads.each(lambda wakes: self._send_wakes(wakes, failures, until_ms), receivers)
        return failures

    def _load(self, message: WakeMessage, first: int, failures: Failures) -> list[_Wake]:
        """Load the waiters, and the data from `first` on, where the first new batch begins."""
        try:
            pk = message.log_pk
            waiters = load_waiters(self._table, message.incarnation, self._clock_ms())
            waiters = [waiter for waiter in waiters if not waiter.polls]
            content_type = next((waiter.content_type for waiter in waiters if waiter.content_type), None)
            last, news = None, None
            if content_type is not None:
                last, news = load_news(self._table, pk, first)
            elif any(waiter.is_socket for waiter in waiters):
                last = load_last(self._table, pk)
            tail = last.after if isinstance(last, Batch) else None
            frame = socket.render_news(tail, content_type, news) if tail and content_type and news else None
            return [
                _Wake(pk, message.start, waiter, tail, frame if waiter.content_type else None)
                for waiter in waiters
            ]
        except Exception as failure:  # noqa: BLE001 - it is reported for this log alone
            failures[message.log_pk] = failure
            return []

    def _send_wakes(self, wakes: Sequence[_Wake], failures: Failures, until_ms: int) -> None:
        """Send the wakes of one receiver. If the receiver is gone, remove its waiters: this is no failure."""
        try:
            try:
                self._send(wakes, until_ms)
                over = [wake.waiter for wake in wakes if wake.is_last_of_a_watch()]
            except (QueueGone, SocketGone):
                over = [wake.waiter for wake in wakes]
            remove_waiters(self._table, over)
        except Exception as failure:  # noqa: BLE001 - it is reported for these logs alone
            failures |= {wake.log_pk: failure for wake in wakes}

    def _send(self, wakes: Sequence[_Wake], until_ms: int) -> None:
        waiter = wakes[0].waiter
        if not waiter.is_socket:
            self._queues.send(
                waiter.address, [encode_message(WakeMessage(each.log_pk, each.start)) for each in wakes]
            )
        elif self._sockets is None:
            raise SocketGone
        elif self._clock_ms() > until_ms:
            raise SocketUnavailable("No time left for this socket; the batch will be retried")
        else:
            frames = socket.render_messages(wake.for_socket() for wake in wakes)
            self._sockets.send(waiter.address, frames)


# --- the sweep ----------------------------------------------------------------------

#: Age from which a queue without a registration is an orphan, in milliseconds: ten times the life of a
#: registration.
ORPHAN_MS: Final = 10 * 60 * 1000
#: Milliseconds after which the sweep removes a lapsed item. DynamoDB removes most items within minutes at no
#: cost. Some engines never do, and then a removal costs less than reading the item in every round.
LAPSED_MS: Final = 60 * 60 * 1000


@dataclass(slots=True)
class QueuesSwept:
    """The numbers of waiters and queues that a run removed."""

    waiters: int = 0
    queues: int = 0


def sweep_queues(
    table: Table, queues: Queues, now_ms: int, has_time_left: Callable[[], bool] = lambda: True
) -> QueuesSwept:
    """Remove lapsed registrations, and old queues without a valid registration. A process that was only
    suspended makes a new queue. If no queue is old, as in an idle stack, a run reads one shard of the
    registrations. Safe to repeat, and to stop anywhere. Raises Busy, OutcomeUnknown, QueueUnavailable."""
    swept = QueuesSwept()
    in_use: set[str] = set()
    old = [url for url in queues.all() if now_ms - (queues.made_ms(url) or now_ms) >= ORPHAN_MS]
    for waiter in all_waiters(table, range(WAIT_SHARDS) if old else [now_ms // TURN_MS % WAIT_SHARDS]):
        if waiter.until_ms > now_ms:
            in_use.add(_name(waiter.address))
        elif now_ms - waiter.until_ms >= LAPSED_MS and has_time_left():
            remove_lapsed(table, waiter)
            swept.waiters += 1
    for url in old:
        if has_time_left() and _name(url) not in in_use:
            with suppress(QueueGone):
                queues.delete(url)
                swept.queues += 1
    return swept


def _name(url: str) -> str:
    return url.rpartition("/")[2]

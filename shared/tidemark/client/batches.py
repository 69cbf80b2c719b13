"""An idempotent producer without I/O, clock or threads (section 5.2.1 of the protocol).

Messages wait until they are a batch. A batch has a sequence number, is sent, and is sent again until it has
an answer; the server writes a number once. Several are on their way at once: one that overtakes the batch
before it gets 409 and waits for it, and from then on fewer are.

A producer that starts claims its id by an epoch above all earlier ones: the time in microseconds. With a
number that begins at 0 in an epoch that somebody has used, its first batch would be taken for a duplicate and
dropped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, replace
from itertools import islice
from traceback import format_tb
from typing import Final, TypedDict

from tidemark.client import errors
from tidemark.client.chunks import is_json
from tidemark.client.core import Protocol, Receipt
from tidemark.client.exchange import Lost, Reply, Request, failure, not_carried_out, passing, warn_of_retry

#: Servers in JavaScript count no further (section 5.2.1).
_MAX_EPOCH: Final = 2**53 - 1
#: Requests in order, after one was overtaken, that allow one more request in flight.
_IN_ORDER: Final = 100
#: Memory of a waiting message beside its bytes: an object, and its place in the queue (CPython).
_MESSAGE_BYTES: Final = 64


class ProducerOptions(TypedDict, total=False):
    """The fields of `ProducerLimits`."""

    linger_seconds: float
    max_batch_bytes: int
    max_batch_messages: int
    max_in_flight: int
    max_held_bytes: int
    max_request_bytes: int


@dataclass(frozen=True)
class ProducerLimits:
    """A batch is sent `linger_seconds` after its first message, or once it has `max_batch_bytes` or
    `max_batch_messages`. `max_held_bytes` bounds the unacknowledged bytes: at the bound `append` waits.
    `append` refuses a message that is larger than `max_request_bytes`."""

    linger_seconds: float = 0.02
    max_batch_bytes: int = 1024 * 1024
    max_batch_messages: int = 10_000
    max_in_flight: int = 5
    max_held_bytes: int = 16 * 1024 * 1024
    max_request_bytes: int = 4 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 0 <= self.linger_seconds <= 86_400:
            raise ValueError(f"linger_seconds is {self.linger_seconds}; it must be from 0 to 86,400")
        for name, value in asdict(self).items():
            if name != "linger_seconds" and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")


@dataclass(slots=True, eq=False)
class ProducerBatch:
    seq: int
    #: How many messages were added before it.
    since: int
    body: bytes
    closes: bool
    #: Since the epoch is what it is; and how many of these failed, those not counted that overtook another
    #: batch.
    tries: int = 0
    failures: int = 0
    #: An earlier try may have been carried out.
    may_be_written: bool = False
    ready_at: float = 0.0
    in_flight: bool = False
    #: When it was sent last, no earlier batch was without an answer.
    was_first: bool = False
    #: The server had not seen the one before it.
    overtook: bool = False


class Batches:
    """The state of one producer. Times are the caller's, of any clock that does not go back."""

    def __init__(
        self,
        protocol: Protocol,
        producer_id: str,
        now_microseconds: int,
        epoch: int | None,
        limits: ProducerLimits,
    ) -> None:
        if not producer_id or not (producer_id.isascii() and producer_id.isprintable()):
            raise ValueError(f"producer_id is {producer_id!r}; it must be printable ASCII, and not empty")
        if epoch is not None and not 0 <= epoch <= _MAX_EPOCH:
            raise ValueError(f"epoch is {epoch}; it must be from 0 to {_MAX_EPOCH}")
        self._protocol, self._retry, self.limits = protocol, protocol.retry, limits
        self.producer_id: Final = producer_id
        self.epoch = now_microseconds if epoch is None else epoch
        #: Until the first answer the epoch is not known to be above all others, and only one batch is sent.
        self._claiming = self._chooses_epoch = epoch is None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = self._held_bytes = 0
        self._waiting_since = 0.0
        self._unanswered: list[ProducerBatch] = []
        self._next_seq = 0
        self._in_flight: float = limits.max_in_flight
        self.added = 0
        self._urgent = False
        self._closing = self._close_is_made = False
        self.failure: Exception | None = None
        self.failure_is_told = False
        self.result: Receipt | None = None

    def encode(self, data: object) -> bytes:
        """The stream's content type must be known."""
        message, most = self._protocol.encode_message(data), self.limits.max_request_bytes
        if len(message) > most - 2 * is_json(self._protocol.content_type):  # In brackets.
            raise ValueError(f"the message has {len(message):,} bytes; a request takes at most {most:,}")
        return message

    @property
    def is_full(self) -> bool:
        return self._held_bytes >= self.limits.max_held_bytes

    @property
    def acknowledged(self) -> int:
        """How many messages the server has acknowledged: always the first ones."""
        return self._unanswered[0].since if self._unanswered else self.added - len(self._waiting)

    @property
    def unwritten(self) -> int:
        """How many messages the server has not acknowledged."""
        return self.added - self.acknowledged

    @property
    def is_closed(self) -> bool:
        return self._close_is_made and not self._unanswered and self.failure is None

    def add(self, message: bytes, now: float) -> bool:
        """Whether a batch may have become ready, or a time to wait for."""
        self.check()
        if not message:
            return False  # nothing to write: a model's token may be empty
        if self._closing:
            raise ValueError("the producer is closed and takes no more messages")
        if not self._waiting:
            self._waiting_since = now
        self._waiting.append(message)
        self.added += 1
        self._waiting_bytes += len(message)
        self._held_bytes += len(message) + _MESSAGE_BYTES
        return len(self._waiting) == 1 or self._has_whole_batch()

    def check(self) -> None:
        """Raise what made the producer fail."""
        if self.failure is not None:
            self.failure_is_told = True
            raise self.failure.with_traceback(None)  # Else each time adds its frames, with a message.

    def hurry(self) -> None:
        """Send the waiting messages without lingering."""
        self._urgent = bool(self._waiting)

    def close(self) -> None:
        """The stream is closed with the last message, in one request."""
        self._closing = True

    def detach(self) -> None:
        """Nothing is sent any more. What comes after a close has its result."""
        if not self.is_closed:
            self.fail(ValueError("the producer is detached and takes no more messages"))

    def take(self, now: float) -> ProducerBatch | None:
        """A batch that is to be sent now."""
        if self.failure is not None:
            return None
        batch = next((one for one in self._unanswered if self._may_repeat(one) and one.ready_at <= now), None)
        is_due = self._closing or self._urgent or self._has_whole_batch() or now >= self._linger_end
        if batch is None and is_due and self._may_begin():
            batch = self._begin()
        if batch is not None:
            batch.in_flight, batch.was_first = True, batch is self._unanswered[0]
            batch.tries += 1
        return batch

    def next_at(self) -> float | None:
        """When `take` may give something that it does not give now, if nothing else happens."""
        if self.failure is not None:
            return None
        times = [batch.ready_at for batch in self._unanswered if self._may_repeat(batch)]
        if self._waiting and self._may_begin():
            times.append(self._linger_end)
        return min(times, default=None)

    def request(self, batch: ProducerBatch) -> Request:
        headers = {
            "Producer-Id": self.producer_id,
            "Producer-Epoch": str(self.epoch),
            "Producer-Seq": str(batch.seq),
        }
        if batch.body:
            headers["Content-Type"] = self._protocol.content_type or ""
        if batch.closes:
            headers["Stream-Closed"] = "true"
        return Request("POST", self._protocol.url, headers, body=batch.body)

    def answered(self, batch: ProducerBatch, reply: Reply | Lost, now: float) -> None:
        batch.in_flight = False
        if self.failure is not None or batch not in self._unanswered:
            return
        request = self.request(batch)
        if isinstance(reply, Lost) or not 200 <= reply.status < 300:
            why: errors.StreamError | None = failure(request, reply)
        else:
            why = self._not_written(batch, request, reply)
        # Where an earlier batch has no answer, only one that tells whose close it was acknowledges it.
        may_have_closed = isinstance(why, errors.StreamClosed) and batch.may_be_written
        if why is None or (may_have_closed and not batch.body and batch is self._unanswered[0]):
            assert isinstance(reply, Reply)
            self._acknowledge(batch, reply)
        elif isinstance(why, errors.OutOfOrderSequence) and not batch.was_first:
            batch.overtook, self._in_flight = True, 1
        elif may_have_closed and self._awaits_close(batch):
            batch.ready_at = now + self._retry.delay(0, reply)
            # The closing batch may have been refused because it overtook this one, and a late copy of it may
            # have closed the stream since: it is asked again.
            self._unanswered[-1].overtook = False
        elif isinstance(why, errors.ProducerFenced) and why.status == 403 and self._may_claim(batch):
            current = why.headers["producer-epoch"]
            self.epoch = max(self.epoch, int(current) if current.isdecimal() else 0) + 1
            batch.tries = 0
        elif passing(reply) and batch.failures < self._retry.max_retries:
            if not batch.failures:
                warn_of_retry(request, reply)
            batch.ready_at = now + self._retry.delay(batch.failures, reply)
            batch.failures += 1
            batch.may_be_written |= not not_carried_out(reply)
        else:
            why.add_note(f"Message {batch.since + 1} of this producer is the first one in that request.")
            self.fail(why)

    def fail(self, why: Exception) -> None:
        """The producer keeps no message and no frame from then on: only how many messages are not written."""
        if self.failure is None:
            if why.__traceback__ is not None:
                why.add_note("".join(format_tb(why.__traceback__)))
            self.failure = why.with_traceback(None)
            self._waiting = deque(b"" for _ in self._waiting)
            self._unanswered = [replace(batch, body=b"") for batch in self._unanswered]

    def _awaits_close(self, batch: ProducerBatch) -> bool:
        """The stream may be closed by this producer's own last batch, which followed this one: its answer
        tells."""
        return self._close_is_made and batch is not self._unanswered[-1]

    def _acknowledge(self, batch: ProducerBatch, reply: Reply) -> None:
        """The server takes a number only behind all before it: these are written too."""
        self._claiming = False
        self._in_flight = min(self.limits.max_in_flight, self._in_flight + 1 / _IN_ORDER)
        while self._unanswered and self._unanswered[0].seq <= batch.seq:
            self._held_bytes -= len(self._unanswered.pop(0).body)
        headers = reply.headers
        if "stream-next-offset" in headers:
            closed = errors.is_true(headers, "stream-closed")
            self.result = Receipt(headers["stream-next-offset"], closed, headers.get("etag"))

    def _not_written(self, batch: ProducerBatch, request: Request, reply: Reply) -> errors.StreamError | None:
        """A success that acknowledges nothing: from something that is no server of the protocol; or a
        duplicate, in an epoch that this producer has chosen, of a batch that was sent once. Then its number
        is another producer's."""
        headers = reply.headers
        if "stream-next-offset" not in headers and "producer-seq" not in headers:
            return errors.MalformedReply(f"{request.what}: {reply.status} is not an answer of the protocol")
        duplicate = reply.status == 204 and "producer-seq" in headers and batch.body
        if duplicate and batch.tries == 1 and self._chooses_epoch:
            said = b"another producer has used this id, epoch and sequence number"
            return errors.ProducerFenced(request.what, reply.status, headers, said)
        return None

    def _may_claim(self, batch: ProducerBatch) -> bool:
        """Not if the first batch may be there already, in the epoch before: it would be written twice."""
        return self._claiming and not batch.may_be_written

    def _may_repeat(self, batch: ProducerBatch) -> bool:
        return not batch.in_flight and (not batch.overtook or batch is self._unanswered[0])

    def _may_begin(self) -> bool:
        """A batch behind one that fails would only be refused."""
        if not self._waiting and (not self._closing or self._close_is_made):
            return False
        if self._unanswered and (self._claiming or self._unanswered[0].failures):
            return False
        return len(self._unanswered) < int(self._in_flight)

    @property
    def _linger_end(self) -> float:
        return self._waiting_since + self.limits.linger_seconds

    def _has_whole_batch(self) -> bool:
        limits = self.limits
        return (
            self._waiting_bytes >= limits.max_batch_bytes or len(self._waiting) >= limits.max_batch_messages
        )

    def _begin(self) -> ProducerBatch:
        messages, size = list[bytes](), 0
        for message in islice(self._waiting, self.limits.max_batch_messages):
            longer = size + len(message)
            # JSON has a comma or bracket around each.
            most = min(self.limits.max_batch_bytes, self.limits.max_request_bytes - len(messages) - 2)
            if messages and longer > most:
                break
            messages.append(message)
            size = longer
        since = self.added - len(self._waiting)
        for _ in messages:
            self._waiting.popleft()
        self._waiting_bytes -= size
        self._urgent = self._urgent and bool(self._waiting)
        body = b"".join(messages)
        if messages and is_json(self._protocol.content_type):
            body = b"[%b]" % b",".join(messages)
        self._held_bytes += len(body) - size - len(messages) * _MESSAGE_BYTES
        self._close_is_made = self._closing and not self._waiting
        batch = ProducerBatch(self._next_seq, since, body, closes=self._close_is_made)
        self._next_seq += 1
        self._unanswered.append(batch)
        return batch

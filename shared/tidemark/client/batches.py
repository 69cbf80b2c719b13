"""An idempotent producer without I/O, clock or threads (section 5.2.1 of the protocol).

Messages wait until they form a batch. A batch has a sequence number and is retried until the server answers;
the server writes each number once. Several batches may be in flight. A batch that overtakes the one before it
gets 409 and waits; from then on fewer batches are in flight.

A new producer claims its id with an epoch above all earlier ones: the time in microseconds. In a used epoch,
the server would drop its first batch (number 0) as a duplicate.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, replace
from itertools import islice
from traceback import format_tb
from typing import Any, Final, TypedDict

from tidemark.client import errors
from tidemark.client.chunks import is_json
from tidemark.client.core import Create, Protocol, Receipt
from tidemark.client.exchange import (
    Lost,
    Reply,
    Request,
    failure,
    may_have_been_written,
    passing,
    warn_of_retry,
)

#: The largest exact integer of JavaScript (section 5.2.1).
_MAX_EPOCH: Final = 2**53 - 1
#: Batches acknowledged before one more may be in flight, after requests have overtaken each other.
_IN_ORDER: Final = 100
#: Memory overhead of a queued message, in bytes: its object and its place in the queue (CPython).
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
    """The limits of batches. A batch is sent `linger_seconds` after its first message, or as soon as it has
    `max_batch_bytes` or `max_batch_messages`. `append` waits while unacknowledged messages take
    `max_held_bytes` of memory, and refuses a message larger than `max_request_bytes`, the server's limit."""

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
    #: Number of messages added before this batch.
    since: int
    body: bytes
    closes: bool
    #: Tries in the current epoch, and failures, without the tries that overtook another batch.
    tries: int = 0
    failures: int = 0
    #: An earlier try may have written the batch.
    may_be_written: bool = False
    failed_at: float = 0.0
    ready_at: float = 0.0
    in_flight: bool = False
    #: At the last try, this was the first unacknowledged batch.
    was_first: bool = False
    #: The server had not yet received the batch before this one.
    overtook: bool = False


class Batches:
    """The state of one producer. The caller passes times of a monotonic clock."""

    def __init__(
        self,
        protocol: Protocol[Any],
        producer_id: str,
        now_microseconds: int,
        epoch: int | None,
        limits: ProducerLimits,
        *,
        create: Create = False,
    ) -> None:
        if not producer_id or not (producer_id.isascii() and producer_id.isprintable()):
            raise ValueError(f"producer_id is {producer_id!r}; it must be printable ASCII, and not empty")
        if epoch is not None and not 0 <= epoch <= _MAX_EPOCH:
            raise ValueError(f"epoch is {epoch}; it must be from 0 to {_MAX_EPOCH}")
        self._protocol, self._retry, self.limits = protocol, protocol.retry, limits
        self.producer_id: Final = producer_id
        self.epoch = now_microseconds if epoch is None else epoch
        self._chooses_epoch: Final = epoch is None
        self._creation: Final = protocol.creation(create)
        #: Until the first answer another epoch may be higher, or the stream missing: one batch is in flight.
        self._is_first = epoch is None or create is not False
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
        self.failure_is_raised = False
        self.result: Receipt | None = None

    def encode(self, data: object) -> bytes:
        """Return the bytes of a message. The stream's content type must be known."""
        message, most = self._protocol.encode_message(data), self.limits.max_request_bytes
        if len(message) > most - 2 * is_json(self._protocol.content_type):  # In brackets.
            raise ValueError(f"the message has {len(message):,} bytes; a request takes at most {most:,}")
        return message

    @property
    def is_full(self) -> bool:
        return self._held_bytes >= self.limits.max_held_bytes

    @property
    def acknowledged(self) -> int:
        """Return the number of acknowledged messages: always the first ones."""
        return self._unanswered[0].since if self._unanswered else self.added - len(self._waiting)

    @property
    def unwritten(self) -> int:
        """Return the number of messages that the server has not acknowledged."""
        return self.added - self.acknowledged

    @property
    def is_closed(self) -> bool:
        return self._close_is_made and not self._unanswered and self.failure is None

    def add(self, message: bytes, now: float) -> bool:
        """Queue a message. Return whether a batch may be ready, or `next_at` may have changed."""
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
        """Raise the error that made the producer fail."""
        if self.failure is not None:
            self.failure_is_raised = True
            raise self.failure.with_traceback(
                None
            )  # Each raise would add frames, which keep a message in memory.

    def hurry(self) -> None:
        """Send the waiting messages without lingering."""
        self._urgent = bool(self._waiting)

    def close(self) -> None:
        """Close the stream in the request of the last message."""
        self._closing = True

    def detach(self) -> None:
        """Stop sending, unless the stream is closed: then later calls return the result of the close."""
        if not self.is_closed:
            self.fail(ValueError("the producer is detached and takes no more messages"))

    def take(self, now: float) -> ProducerBatch | None:
        """Return a batch to send now, or None."""
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
        """Return the time at which `take` may have a new batch, if nothing else happens."""
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
        if self._is_first:
            headers |= self._creation
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
        # While an earlier batch has no answer, the close may be another client's: do not acknowledge.
        may_have_closed = isinstance(why, errors.StreamClosed) and batch.may_be_written
        again_at = now + self._retry.delay(batch.failures, reply)
        if why is None or (may_have_closed and not batch.body and batch is self._unanswered[0]):
            assert isinstance(reply, Reply)
            self._acknowledge(batch, reply)
        elif isinstance(why, errors.OutOfOrderSequence) and not batch.was_first:
            batch.overtook, self._in_flight = True, 1
        elif may_have_closed and self._awaits_close(batch):
            batch.ready_at = now + self._retry.delay(0, reply)
            # The closing batch was perhaps refused because it overtook this one, and then a late copy closed
            # the stream: send the closing batch again.
            self._unanswered[-1].overtook = False
        elif isinstance(why, errors.ProducerFenced) and why.status == 403 and self._may_claim(batch):
            current = why.headers["producer-epoch"]
            self.epoch = max(self.epoch, int(current) if current.isdecimal() else 0) + 1
            batch.tries = 0
        elif passing(reply) and not self._retry.is_over(batch.failures, again_at - (batch.failed_at or now)):
            if not batch.failures:
                warn_of_retry(request, reply)
                batch.failed_at = now
            batch.ready_at = again_at
            batch.failures += 1
            batch.may_be_written |= may_have_been_written(reply)
        else:
            why.add_note(f"Message {batch.since + 1} of this producer is the first one in that request.")
            self.fail(why)

    def fail(self, why: Exception) -> None:
        """Stop with this error. Only the number of unwritten messages is kept: no messages, no frames."""
        if self.failure is None:
            if why.__traceback__ is not None:
                why.add_note("".join(format_tb(why.__traceback__)))
            errors.forget_frames(why)
            self.failure = why
            self._waiting = deque(b"" for _ in self._waiting)
            self._unanswered = [replace(batch, body=b"") for batch in self._unanswered]

    def _awaits_close(self, batch: ProducerBatch) -> bool:
        """Return whether this producer's own closing batch, sent after this one, may have closed the stream:
        the answer to that batch decides."""
        return self._close_is_made and batch is not self._unanswered[-1]

    def _acknowledge(self, batch: ProducerBatch, reply: Reply) -> None:
        """Remove this batch and all earlier ones: the server accepts numbers only in order."""
        self._is_first = False
        self._in_flight = min(self.limits.max_in_flight, self._in_flight + 1 / _IN_ORDER)
        while self._unanswered and self._unanswered[0].seq <= batch.seq:
            self._held_bytes -= len(self._unanswered.pop(0).body)
        headers = reply.headers
        if "stream-next-offset" in headers:
            closed = errors.is_true(headers, "stream-closed")
            self.result = Receipt(headers["stream-next-offset"], closed, headers.get("etag"))

    def _not_written(self, batch: ProducerBatch, request: Request, reply: Reply) -> errors.StreamError | None:
        """Return the error of a 2xx answer that acknowledges nothing: the answer is not of the protocol,
        or reports a duplicate of a batch sent only once, in an epoch of this producer's choice: then
        another producer has used the number."""
        headers = reply.headers
        if "stream-next-offset" not in headers and "producer-seq" not in headers:
            return errors.MalformedReply(f"{request.what}: {reply.status} is not an answer of the protocol")
        duplicate = reply.status == 204 and "producer-seq" in headers and batch.body
        if duplicate and batch.tries == 1 and self._chooses_epoch:
            reason = b"another producer has used this id, epoch and sequence number"
            return errors.ProducerFenced(request.what, reply.status, headers, reason)
        return None

    def _may_claim(self, batch: ProducerBatch) -> bool:
        """Return whether a higher epoch is safe. If the first batch may be written, a new epoch would repeat
        the write."""
        return self._chooses_epoch and self._is_first and not batch.may_be_written

    def _may_repeat(self, batch: ProducerBatch) -> bool:
        return not batch.in_flight and (not batch.overtook or batch is self._unanswered[0])

    def _may_begin(self) -> bool:
        """Return whether to start a batch. Behind a failing batch the server would refuse it."""
        if not self._waiting and (not self._closing or self._close_is_made):
            return False
        if self._unanswered and (self._is_first or self._unanswered[0].failures):
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
            # JSON adds a comma or bracket for each message.
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

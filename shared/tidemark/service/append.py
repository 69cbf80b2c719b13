"""Append (§5.2), idempotent producers (§5.2.1) and closing (§5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidemark.blobs.store import batch_blob_key
from tidemark.log.append import TailMoved, put_batch
from tidemark.log.records import Batch, StreamRecord
from tidemark.log.schema import decode_producer, producer_key
from tidemark.log.tails import StreamHead
from tidemark.protocol.append import Append, Outcome, Plan, plan_appends, unknown_producers
from tidemark.protocol.content_type import ContentType
from tidemark.protocol.errors import Busy, ContentTypeMismatch, Malformed, ProtocolError, SequenceGap
from tidemark.protocol.messages import NOTHING
from tidemark.protocol.producer import Claim, ProducerState
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import head_from, load_known, reload_tail
from tidemark.service.parse import parse_body
from tidemark.service.read import renew
from tidemark.service.stores import Stores

#: Bytes up to this size travel in the table's item, larger ones go to S3 first.
INLINE_BYTES: Final = 64 * 1024
#: Losing this often means that the stream is beyond what one partition takes.
_MAX_LOSSES = 40


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """An append as it arrived; what the body means depends on the stream it goes to."""

    content_type: ContentType | None
    body: bytes
    close: bool = False
    stream_seq: str | None = None
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class Spilled:
    """Bytes that lie in S3 already, under a name for this incarnation of the stream alone: what is
    reclaimed with another incarnation's log must not be pointed to. `asked`, where it is known, is
    the append that they were read from, so that a large body is parsed once."""

    incarnation: str
    data: bytes
    blob: str
    asked: Append | None = None


def append(
    stores: Stores, key: StreamKey, requests: Sequence[AppendRequest], spilled: Spilled | None = None
) -> list[Outcome | ProtocolError]:
    """Decide the requests in order and commit those accepted with one conditional write.

    Answers each on its own. Raises StreamNotFound, Busy or OutcomeUnknown for all of them.

    Warm, nothing is read first. A refusal decided on remembered state counts only once a
    write or a fresh read has shown that the state was the latest.
    """
    return _Attempt(stores, key, requests, spilled).run()


def spill(stores: Stores, key: StreamKey, request: AppendRequest) -> Spilled | None:
    """Put the append's bytes into S3 before its turn, if it looks as if they will be needed there.

    Decided on what is remembered, and so only a guess: the turn itself decides again, and puts
    there what is missing. A sequence gap may be filled by the appends that wait in front. What is
    put and then refused is an orphan under the incarnation's prefix: nothing points to it, and it
    goes when the log is reclaimed (`batch_blob_key`).

    Raises StreamNotFound, and StorageUnavailable, StorageSilent or Busy for S3. Nothing has changed then.
    """
    now_ms = stores.clock_ms()
    known = stores.tails.get(key, now_ms)
    if known is None or known.is_expired(now_ms):
        known = load_known(stores, key)
    asked = _interpret_one(stores, known.record.content_type, request)
    data = asked.messages.data
    if asked.fault is not None or len(data) <= INLINE_BYTES:
        return None
    if not unknown_producers(known.tail, [asked]):
        plan = plan_appends(known.tail, [asked], {})
        if not plan.writes and not isinstance(plan.answers[0], SequenceGap):
            return None
    return replace(_put_blob(stores, known.record, data), asked=asked)


def _put_blob(stores: Stores, record: StreamRecord, data: bytes) -> Spilled:
    name = batch_blob_key(record.incarnation, stores.new_id())
    stores.blobs.put(name, data)
    return Spilled(record.incarnation, data, name)


class _Attempt:
    """The state of one group while it races with other writers for the tail."""

    def __init__(
        self, stores: Stores, key: StreamKey, requests: Sequence[AppendRequest], spilled: Spilled | None
    ) -> None:
        self._stores = stores
        self._key = key
        self._requests = requests
        self._append_id = stores.new_id()
        self._spilled = spilled
        self._losses = 0

    def run(self) -> list[Outcome | ProtocolError]:
        known, fresh = self._start()
        appends = self._interpret(known.record)
        while True:
            plan = self._plan(known, appends)
            if not plan.writes:
                if fresh:
                    # A repeated append that succeeds is a write, which renews a sliding expiry (§5.1).
                    if any(isinstance(answer, Outcome) for answer in plan.answers):
                        renew(self._stores, known.record, known.touched_ms, self._stores.clock_ms())
                    return plan.answers
                latest, fresh = load_known(self._stores, self._key), True
            else:
                try:
                    self._commit(known, plan)
                except TailMoved as moved:
                    latest, fresh = self._adopt(known, moved.winner)
                else:
                    return plan.answers
            if latest.record.incarnation != known.record.incarnation:
                appends = self._interpret(latest.record)
            known = latest

    def _start(self) -> tuple[StreamHead, bool]:
        """What is known, and whether it was read just now."""
        now_ms = self._stores.clock_ms()
        known = self._stores.tails.get(self._key, now_ms)
        if known is None or known.is_expired(now_ms):
            return load_known(self._stores, self._key), True
        return known, False

    def _interpret(self, record: StreamRecord) -> list[Append]:
        spilled = self._spilled
        if spilled is not None and spilled.asked is not None and spilled.incarnation == record.incarnation:
            return [spilled.asked]
        return [_interpret_one(self._stores, record.content_type, request) for request in self._requests]

    def _plan(self, known: StreamHead, appends: Sequence[Append]) -> Plan:
        """Producers' own items are read after the tail is known, never before: a producer
        could have appended and been pushed out again in between."""
        looked_up: dict[str, ProducerState | None] = {}
        for producer_id in unknown_producers(known.tail, appends):
            item = self._stores.table.get(producer_key(known.record.incarnation, producer_id))
            looked_up[producer_id] = decode_producer(item) if item else None
        return plan_appends(known.tail, appends, looked_up)

    def _commit(self, known: StreamHead, plan: Plan) -> None:
        now_ms = self._stores.clock_ms()
        batch = self._spill(
            known.record,
            Batch(
                start=plan.before.offset,
                after=plan.after,
                append_id=self._append_id,
                time_ms=now_ms,
                data=plan.data,
                lengths=plan.lengths,
                appends=plan.appends,
            ),
        )
        put_batch(self._stores.table, known.record, batch, plan.pushed_out.values())
        self._stores.recent.keep(known.record.incarnation, replace(batch, data=plan.data))
        self._stores.tails.learn(head_from(known.record, batch, now_ms))

    def _spill(self, record: StreamRecord, batch: Batch) -> Batch:
        """Put large bytes into S3, once, however often the tail moves; again only for another
        incarnation."""
        data, spilled = batch.data or b"", self._spilled
        if len(data) <= INLINE_BYTES:
            return batch
        if spilled is None or spilled.incarnation != record.incarnation or spilled.data != data:
            spilled = self._spilled = _put_blob(self._stores, record, data)
        return replace(batch, data=None, blob=spilled.blob)

    def _adopt(self, known: StreamHead, winner: Batch) -> tuple[StreamHead, bool]:
        """Go on from the batch that took our place, or, once others followed it, from the
        tail. A tombstone says that the stream is gone; it may be back under the same name."""
        self._losses += 1
        if winner.tombstone:
            self._stores.tails.forget(self._key)
            return load_known(self._stores, self._key), True
        if self._losses == 1:
            adopted = head_from(known.record, winner, known.learned_ms)
            self._stores.tails.learn(adopted)
            return adopted, False
        if self._losses > _MAX_LOSSES:
            raise Busy
        self._stores.pause(self._losses)
        return reload_tail(self._stores, known.record), True


def _interpret_one(stores: Stores, content_type: ContentType, request: AppendRequest) -> Append:
    """Read the body as the stream's content type says; what is wrong with it is kept for
    the decision, which looks at the closed state first (§5.2, error precedence)."""
    messages, fault = NOTHING, None
    try:
        if request.body or not request.close:
            messages = parse_body(stores, content_type, _check_body(content_type, request))
            if not messages.data:
                raise Malformed("Empty JSON array: there is nothing to append")
    except ProtocolError as refusal:
        fault = refusal
    return Append(messages, request.close, request.stream_seq, request.claim, fault)


def _check_body(content_type: ContentType, request: AppendRequest) -> bytes:
    """A body needs the stream's content type; closing alone needs neither (§5.2)."""
    if not request.body:
        raise Malformed("Empty body: send data, or Stream-Closed: true to close the stream")
    if request.content_type is None:
        raise Malformed("Content-Type is missing")
    if request.content_type.essence != content_type.essence:
        raise ContentTypeMismatch(content_type.essence, request.content_type.essence)
    return request.body

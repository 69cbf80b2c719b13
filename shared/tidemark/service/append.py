"""Append (§5.2), idempotent producers (§5.2.1) and closing (§5.3).

Why one conditional write is enough
===================================

A stream's log is a chain of batches. The key of a batch is the offset at which it begins, and it holds
the offset at which it ends: the key of the next one. It also carries the *tail*: all that a writer must
know to decide about the next append (is the stream closed, the last Stream-Seq, the recent producers).

An append is decided on some tail and written at that tail's offset, on the condition that nothing has
that key yet. At most one batch can ever be at a key. So if the write succeeds, no batch had followed
that tail: the decision was made on the latest state, and decision and commit are one step. There is no
lock and no read before the write. These are the states of an append:

| state  | what happens                                     | next                                   |
| ------ | ------------------------------------------------ | -------------------------------------- |
| start  | the tail is remembered                           | decide                                 |
|        | it is not                                        | read the tail, decide                  |
| decide | something is accepted                            | write at the tail's offset             |
|        | all refused or duplicates, the tail was read now | done                                   |
|        | all refused or duplicates, it was remembered     | read the tail, decide                  |
| write  | nothing had the key                              | done                                   |
|        | the batch there is this very write               | done: an earlier reply was lost        |
|        | another batch is there, for the first time       | adopt its tail, decide                 |
|        | another batch is there, once more                | wait a little, read the tail, decide   |
|        | others combine, or it is so again and again      | combine (`service/combine.py`)         |
|        | a tombstone is there                             | read the stream, decide; or 404        |

- **A lost race** returns the batch that won. It carries the tail that the next decision needs, so one loss
  costs no read. After a second loss others are clearly busy: wait a little, and read the tail.
- **A lost reply.** Each write carries an id of its own (`append_id`). A write that is refused and meets its
  own id was sent twice and has landed (`log/append.py: check_landed`). The id stays the same from one try
  to the next, so that a late copy of an earlier try is recognised too.
- **Remembered state** may be old. A successful write proves that it was the latest. A refusal or a duplicate
  writes nothing, so it proves nothing: it counts only on a fresh read.
- **Producers.** A batch carries the most recent ones. One that is pushed out gets an item of its own, in
  the same transaction as the batch, so its state is always in exactly one place. That item is read after
  the tail is known: read before, it could miss a producer that appends and is pushed out in between.
- **Closing** is a flag on the last batch, or an empty batch at the tail. It takes the key that every
  other writer needs, so they lose the race and see that the stream is closed.
- **Deletion and expiry** put a *tombstone* at that key, in one transaction with the change of the stream's
  item. A writer that meets a tombstone reads the item again. A stream that was created anew has another
  incarnation, and with it another log: no key of the old one is used again.
- **Vacated keys.** "Nothing has that key" must mean that nothing ever had it. Batches that are trimmed lie
  below the tail, and a tombstone stays for an hour (`RECLAIM_AFTER_MS`), while no process decides on a tail
  that it learned more than five minutes ago (`MAX_AGE_MS`): no writer aims at a key that was emptied. A pack
  replaces only batches that are an hour old, and never the last one (`janitor/pack.py`).

A group of appends (`service/group_commit.py`) is decided in order, each on the tail that the one before it
leaves behind, and is written as one batch. A body over 64 KB is put into S3 first, under a key that is
never written twice; the batch then names it. If the batch loses for good, nothing points to the body.

Which answer to a lost race is whose: `docs/internals/races.md`. The decision is pure
(`protocol/append.py`). `tests/faults/test_rules_of_the_proof.py` removes one rule after the other, and each
time an append is lost, doubled or in the wrong place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from tidemark.log import tails
from tidemark.log.append import TailMoved, put_batch
from tidemark.log.combining import MAIL_BYTES, SMALL_CROWD, fits_mail
from tidemark.log.due import schedule_packing
from tidemark.log.records import Batch, Checksums, Entry, StreamRecord, Tombstone
from tidemark.protocol.append import Append, AppendPlan, Outcome, plan_appends, unknown_producers
from tidemark.protocol.caching import IfMatch
from tidemark.protocol.errors import (
    Busy,
    ContentTypeMismatch,
    Malformed,
    ProtocolError,
    SequenceGap,
    StreamNotFound,
)
from tidemark.protocol.messages import NOTHING, ContentType, Messages, StoredBody, parse_messages
from tidemark.protocol.producer import Claim
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.combine import back_later, combine
from tidemark.service.load import Known, decide, head_from, load_head, reload_tail
from tidemark.service.read import renew
from tidemark.service.stores import Stores

#: The worst JSON text of this size takes a few milliseconds.
_ON_THE_SPOT_BYTES: Final = 4 * 1024
#: Bytes up to this size travel in the table's item, larger ones go to S3 first.
INLINE_BYTES: Final = 64 * 1024
KILOBYTE: Final = 1024
#: An append that loses this often is to a stream with more writers than one partition takes.
_MAX_LOSSES = 40


class AppendRequest(NamedTuple):
    """An append as it arrived; its stream's content type decides how the body is parsed. With `incarnation`,
    a later stream of the same name refuses it with StreamNotFound."""

    content_type: ContentType | None
    body: bytes
    close: bool = False
    stream_seq: str | None = None
    claim: Claim | None = None
    if_match: IfMatch | None = None
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class Spilled:
    """Bytes that are in S3 already, under a name for this incarnation of the stream alone: a batch must
    not point to what is reclaimed with another incarnation's log. `parsed`, where it is known, is the
    append that the bytes were read from, so that a large body is parsed once."""

    incarnation: str
    data: bytes
    body: StoredBody
    parsed: Append | None = None


def append(
    stores: Stores, key: StreamKey, requests: Sequence[AppendRequest], spilled: Spilled | None = None
) -> list[Outcome | ProtocolError]:
    """Decide the requests in order and commit those accepted with one conditional write.

    Returns an outcome or a refusal for each. Raises StreamNotFound, Busy or OutcomeUnknown for all of
    them. If the tail is remembered, nothing is read first.
    """
    attempt = _Attempt(stores, key, requests, spilled, stores.new_id())
    known = _remembered_or_read(stores, key)
    appends = attempt.parse(known.head.record)
    while isinstance(step := attempt.step(known, appends), Known):
        if step.head.record.incarnation != known.head.record.incarnation:
            appends = attempt.parse(step.head.record)
        known = step
    return step


@dataclass(slots=True)
class _Attempt:
    """The state of one group while it races with other writers for the tail."""

    _stores: Stores
    _key: StreamKey
    _requests: Sequence[AppendRequest]
    _spilled: Spilled | None
    _append_id: str
    _losses: int = 0
    _has_lost_before: bool = False

    def step(self, known: Known, appends: Sequence[Append]) -> list[Outcome | ProtocolError] | Known:
        """Decide, and do what follows: the results, or what is known for the next decision."""
        head = known.head
        plan = decide(self._stores, head, appends)
        if not plan.writes:
            return self.settle(known, plan)
        if not self.combines(head, appends):
            return self.race(head, plan, appends)
        if self.spills_first(head, appends[0].messages):
            return Known(reload_tail(self._stores, head.record), is_fresh=True)
        combined = combine(self._stores, head, self.mailable(head.record, appends[0]), self._append_id)
        return combined if isinstance(combined, Known) else [combined]

    def settle(self, known: Known, plan: AppendPlan) -> list[Outcome | ProtocolError] | Known:
        """Nothing is to be written: that counts only on a fresh read."""
        head = known.head
        if not known.is_fresh:
            return Known(load_head(self._stores, self._key), is_fresh=True)
        # A repeated append that succeeds is a write, which renews a sliding expiry (§5.1).
        if any(isinstance(result, Outcome) for result in plan.results):
            renew(self._stores, head.record, head.touched_ms, self._stores.clock_ms())
        return plan.results

    def combines(self, head: tails.StreamHead, appends: Sequence[Append]) -> bool:
        """Whether to combine: others do so already, or the race was lost again and again. A group has
        combined appends of its own, and goes on racing."""
        met = self._stores.crowd.on(head.record.incarnation)
        is_alone = not self._losses and not head.mailed and not met.lost_ms
        if is_alone or len(appends) > 1 or not fits_mail(appends[0]):
            return False
        size = appends[0].messages.size
        # A lost put is billed by its size: the larger the append, the sooner it is mail.
        if self._losses >= (1 if self._has_lost_before or size > KILOBYTE else 3):
            return True
        now_ms = self._stores.clock_ms()
        if met.was_in(tails.CROWDED_APART_MS, now_ms) and (size > MAIL_BYTES or met.size >= tails.SEVERAL):
            return True
        return len(head.mailed) >= tails.CROWD and now_ms - head.written_ms < tails.CROWDED_APART_MS

    def spills_first(self, head: tails.StreamHead, messages: Messages) -> bool:
        """Whether large mail was put into S3 just now. Others need less time for a batch, so the tail is read
        anew before it is posted. In a large crowd those reads cost more than mail that is late."""
        met, before = self._stores.crowd.on(head.record.incarnation), self._spilled
        is_small_crowd = met.size <= SMALL_CROWD and met.was_in(
            tails.CROWDED_APART_MS, self._stores.clock_ms()
        )
        if messages.size <= MAIL_BYTES or not is_small_crowd:
            return False
        return self.spill(head.record, messages.data) is not before

    def race(
        self, head: tails.StreamHead, plan: AppendPlan, appends: Sequence[Append]
    ) -> list[Outcome | ProtocolError] | Known:
        """Commit the plan; if others were first, what is known from them. A partition that throttles large
        puts may still take a pointer, so a large append becomes mail then."""
        try:
            self.commit(head, plan)
        except TailMoved as moved:
            return self.adopt(head, moved.winner)
        except Busy:
            is_large = len(appends) == 1 and appends[0].messages.size > MAIL_BYTES and fits_mail(appends[0])
            if self._losses or not is_large:
                raise
            self._losses = 1
            self._stores.crowd.lose(head.record.incarnation, self._stores.clock_ms())
            return Known(head, is_fresh=False)
        return plan.results

    def mailable(self, record: StreamRecord, append: Append) -> Append:
        """The append as mail. A large body goes to S3 first, so that it is sent once, and the mail is a
        pointer."""
        data, lengths = append.messages.data, append.messages.lengths
        if len(data) <= MAIL_BYTES:
            return append
        return replace(append, messages=Messages(b"", lengths, self.spill(record, data).body))

    def spill(self, record: StreamRecord, data: bytes) -> Spilled:
        """Put into S3 once, however often the tail moves, and again only for another incarnation."""
        spilled = self._spilled
        if spilled is None or spilled.incarnation != record.incarnation or spilled.data != data:
            spilled = self._spilled = _put_blob(self._stores, record, data)
        return spilled

    def parse(self, record: StreamRecord) -> list[Append]:
        spilled = self._spilled
        if spilled is not None and spilled.parsed is not None and spilled.incarnation == record.incarnation:
            return [spilled.parsed]
        appends: list[Append] = []
        parsed_bytes = 0
        for request in self._requests:
            parsed_bytes += len(request.body)
            if parsed_bytes > _ON_THE_SPOT_BYTES and appends:
                self._stores.concurrency.sleep(0)  # Other tasks of the event loop run.
                parsed_bytes = len(request.body)
            appends.append(_parse_request(self._stores, record, request))
        return appends

    def commit(self, head: tails.StreamHead, plan: AppendPlan) -> None:
        """Raises TailMoved."""
        stores, record = self._stores, head.record
        data, lengths, appends = plan.body()
        batch = Batch(
            start=plan.before.offset,
            after=plan.after,
            append_id=self._append_id,
            time_ms=stores.clock_ms(),
            data=data,
            lengths=lengths,
            appends=appends,
            checksums=Checksums.of(head.crc, plan.before.offset, data),
        )
        stored = batch
        if len(data) > INLINE_BYTES:
            batch = replace(batch, blob=self.spill(record, data).body.blob)
            stored = replace(batch, data=None)
        put_batch(stores.table, record, stored, plan.pushed_out.values())
        stores.recent.keep(record.incarnation, batch)
        stores.tails.learn(head_from(record, batch, batch.time_ms))
        schedule_packing(stores.table, record, batch, stores.packing, stores.clock_ms())

    def adopt(self, head: tails.StreamHead, winner: Entry) -> Known:
        """The head to decide on next: that of the batch that won, or, once others have followed it, that of
        the tail. A tombstone says that the stream has ended; a new one may have its name."""
        self._losses += 1
        crowd, incarnation, now_ms = self._stores.crowd, head.record.incarnation, self._stores.clock_ms()
        if self._losses == 1:
            self._has_lost_before = crowd.on(incarnation).was_in(tails.CROWDED_MS, now_ms)
        crowd.lose(incarnation, now_ms)
        if isinstance(winner, Tombstone):
            self._stores.tails.forget(self._key)
            return Known(load_head(self._stores, self._key), is_fresh=True)
        if self._losses == 1 and isinstance(winner, Batch):
            adopted = head_from(head.record, winner, head.learned_ms)
            self._stores.tails.learn(adopted)
            return Known(adopted, is_fresh=False)
        if self._losses > _MAX_LOSSES:
            raise back_later()
        self._stores.pause(self._losses)
        return Known(reload_tail(self._stores, head.record), is_fresh=True)


def spill(stores: Stores, key: StreamKey, request: AppendRequest) -> Spilled | None:
    """Put the append's bytes into S3 before its turn, if it looks as if they will be needed there.

    This is decided on what is remembered, so it is only a guess: the turn itself decides again, and puts
    there what is missing. The appends that wait in front may fill a sequence gap. Bytes that are put and
    then refused are an orphan under the incarnation's prefix: nothing points to them, and they are removed
    with the log (`batch_blob_key`).

    Raises StreamNotFound, and StorageUnavailable, StorageSilent or Busy for S3. Nothing has changed then.
    """
    head = _remembered_or_read(stores, key).head
    parsed = _parse_request(stores, head.record, request)
    data = parsed.messages.data
    if parsed.fault is not None or len(data) <= INLINE_BYTES:
        return None
    if not unknown_producers(head.tail, [parsed]):
        plan = plan_appends(head.tail, [parsed], {})
        if not plan.writes and not isinstance(plan.results[0], SequenceGap):
            return None
    return replace(_put_blob(stores, head.record, data), parsed=parsed)


def _remembered_or_read(stores: Stores, key: StreamKey) -> Known:
    """A remembered stream whose time is over may have been renewed by others."""
    now_ms = stores.clock_ms()
    head = stores.tails.get(key, now_ms)
    if head is None or head.is_expired(now_ms):
        return Known(load_head(stores, key), is_fresh=True)
    is_stale = now_ms - head.learned_ms > tails.STALE_MS
    if is_stale and stores.crowd.on(head.record.incarnation).was_in(tails.SHARED_MS, now_ms):
        return Known(reload_tail(stores, head.record), is_fresh=True)
    return Known(head, is_fresh=False)


def _put_blob(stores: Stores, record: StreamRecord, data: bytes) -> Spilled:
    return Spilled(record.incarnation, data, stores.put_body(record.incarnation, data))


def _parse_request(stores: Stores, record: StreamRecord, request: AppendRequest) -> Append:
    """Read the body as the stream's content type says; closing alone needs no body (§5.2). An error in the
    body is kept for the decision, which checks the closed state first (§5.2, error precedence)."""
    messages, fault, content_type = NOTHING, None, record.content_type
    try:
        if request.incarnation not in {None, record.incarnation}:
            raise StreamNotFound
        if request.body or not request.close:
            if not request.body:
                raise Malformed("Empty body: send data, or Stream-Closed: true to close the stream")
            if request.content_type is None:
                raise Malformed("Content-Type is missing: it must be the stream's own")
            if request.content_type.essence != content_type.essence:
                raise ContentTypeMismatch(content_type.essence, request.content_type.essence)
            messages = parse_body(stores, content_type, request.body)
            if not messages.data:
                raise Malformed("Empty JSON array: there is nothing to append")
    except ProtocolError as refusal:
        fault = refusal.without_frames()
    return Append(
        messages,
        request.close,
        request.stream_seq,
        request.claim,
        fault,
        record.incarnation,
        request.if_match,
    )


def parse_body(stores: Stores, content_type: ContentType, body: bytes) -> Messages:
    """Raises as `parse_messages` does. A text that may take long is not read on an event loop."""
    if len(body) <= _ON_THE_SPOT_BYTES or not content_type.is_json:
        return parse_messages(content_type, body)
    return stores.concurrency.compute(partial(parse_messages, content_type, body))

"""Append (§5.2), idempotent producers (§5.2.1) and closing (§5.3).

Why one conditional write is enough
===================================

A stream's log is a chain of batches. The key of a batch is the offset at which it begins. The batch holds
the offset at which it ends, which is the key of the next batch. The batch also holds the *tail*: the state on
which the next append is decided (whether the stream is closed, the last Stream-Seq, the recent producers).

An append is decided on a tail, and is written at that tail's offset on the condition that the key is new. A
key gets at most one batch ever. If the write succeeds, no batch had followed that tail: the decision was made
on the latest state, and decision and commit are one step. There is no lock and no read before the write. The
states of an append are:

| state  | event                                            | next                                   |
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

- **A lost race** returns the batch that won, with the tail for the next decision. A single loss therefore
  costs no read. A second loss shows that the stream is busy: wait a little, and read the tail.
- **A lost reply.** Every write has an id (`append_id`). If a refused write finds its own id in the stored
  batch, the write was sent twice and has landed (`log/append.py: check_landed`). All tries of an append have
  the same id, so that a late copy of an earlier try is recognised too.
- **Remembered state** may be old. A successful write proves that the state was the latest. A refusal or a
  duplicate writes nothing and proves nothing, so it counts only on a fresh read.
- **Producers.** A batch holds the most recent producers. The batch that pushes a producer out writes it to an
  item of its own in the same transaction, so a producer's state is always in exactly one place. The item must
  be read after the tail: an earlier read could miss a producer that appends and is pushed out in between.
- **Closing** is a flag on the last batch, or an empty batch at the tail. The closing batch takes the key that
  every other writer needs, so these writers lose the race and see that the stream is closed.
- **Deletion and expiry** put a *tombstone* at that key, in one transaction with the change of the stream's
  item. A writer that finds a tombstone reads the item again. A stream that is created again has a new
  incarnation and so a new log: no key of the old log is used again.
- **Removed batches.** A key must never be reused, so no writer may aim at a key that has become free. Trimmed
  batches lie below the tail. A tombstone stays for an hour (`RECLAIM_AFTER_MS`), and no process decides on a
  tail that is older than five minutes (`MAX_AGE_MS`). A pack replaces only batches that are an hour old, and
  never the last one (`janitor/pack.py`).

A group of appends (`service/group_commit.py`) is decided in order, each append on the tail after the one
before, and is written as one batch. A body over 64 KB goes to S3 first, under a key that is never written
twice; the batch then names that key. If the batch finally loses, nothing points to the body.

`docs/internals/races.md` lists the ways on after a lost race. The decision is a pure function
(`protocol/append.py`). `tests/faults/test_rules_of_the_proof.py` removes every rule in turn, and shows that
an append is then lost, duplicated or misplaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from tidemark.log import tails
from tidemark.log.append import TailMoved, put_batch
from tidemark.log.combining import MAIL_BYTES, SMALL_GROUP, fits_mail
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

#: Most bytes of JSON that are parsed on the event loop: the worst text takes a few milliseconds.
_ON_THE_SPOT_BYTES: Final = 4 * 1024
#: Most bytes of a body in the table's item; larger bodies go to S3 first.
INLINE_BYTES: Final = 64 * 1024
KILOBYTE: Final = 1024
#: Lost races after which an append is refused: the stream has more writers than a partition can take.
_MAX_LOSSES = 40


class AppendRequest(NamedTuple):
    """An append as it arrived; the stream's content type decides how the body is parsed. If `incarnation` is
    given, a later stream of the same name refuses the append with StreamNotFound."""

    content_type: ContentType | None
    body: bytes
    close: bool = False
    stream_seq: str | None = None
    claim: Claim | None = None
    if_match: IfMatch | None = None
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class Spilled:
    """A body that is in S3 already, under a name of this `incarnation`. Only its batches may point there,
    because the objects are removed with the incarnation's log. `parsed` is the parsed append if known, so
    that a large body is parsed once."""

    incarnation: str
    data: bytes
    body: StoredBody
    parsed: Append | None = None


def append(
    stores: Stores, key: StreamKey, requests: Sequence[AppendRequest], spilled: Spilled | None = None
) -> list[Outcome | ProtocolError]:
    """Decide the requests in order and commit those accepted with one conditional write.

    Returns an outcome or a refusal for each. Raises StreamNotFound, Busy or OutcomeUnknown for the whole
    group. If the tail is remembered, nothing is read first.
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
        """Decide, then settle, race or combine. Returns the results, or the head for the next decision."""
        head = known.head
        plan = decide(self._stores, head, appends)
        if not plan.writes:
            return self.settle(known, plan)
        if not self.combines(head, appends):
            return self.race(head, plan, appends)
        if self.spill_large_mail(head, appends[0].messages):
            return Known(reload_tail(self._stores, head.record), is_fresh=True)
        combined = combine(self._stores, head, self.mailable(head.record, appends[0]), self._append_id)
        return combined if isinstance(combined, Known) else [combined]

    def settle(self, known: Known, plan: AppendPlan) -> list[Outcome | ProtocolError] | Known:
        """Return results that write nothing, which count only on a fresh read."""
        head = known.head
        if not known.is_fresh:
            return Known(load_head(self._stores, self._key), is_fresh=True)
        # A repeated append that succeeds is a write, which renews a sliding expiry (§5.1).
        if any(isinstance(result, Outcome) for result in plan.results):
            renew(self._stores, head.record, head.touched_ms, self._stores.clock_ms())
        return plan.results

    def combines(self, head: tails.StreamHead, appends: Sequence[Append]) -> bool:
        """Whether to combine: other writers combine already, or the race was lost repeatedly. A group goes on
        racing, because it shares its write already."""
        met = self._stores.rivals.on(head.record.incarnation)
        is_alone = not self._losses and not head.mailed and not met.lost_ms
        if is_alone or len(appends) > 1 or not fits_mail(appends[0]):
            return False
        size = appends[0].messages.size
        # A lost put is billed by its size: large appends combine after fewer losses.
        if self._losses >= (1 if self._has_lost_before or size > KILOBYTE else 3):
            return True
        now_ms = self._stores.clock_ms()
        if met.was_in(tails.RIVALS_APART_MS, now_ms) and (size > MAIL_BYTES or met.size >= tails.SEVERAL):
            return True
        return len(head.mailed) >= tails.MANY_WRITERS and now_ms - head.written_ms < tails.RIVALS_APART_MS

    def spill_large_mail(self, head: tails.StreamHead, messages: Messages) -> bool:
        """With few writers, put large mail into S3 unless it is there. Returns whether this was done: then
        the tail must be read again, because other writers have committed meanwhile. With many writers these
        reads would cost more than late mail does."""
        met, before = self._stores.rivals.on(head.record.incarnation), self._spilled
        is_small_group = met.size <= SMALL_GROUP and met.was_in(
            tails.RIVALS_APART_MS, self._stores.clock_ms()
        )
        if messages.size <= MAIL_BYTES or not is_small_group:
            return False
        return self.spill(head.record, messages.data) is not before

    def race(
        self, head: tails.StreamHead, plan: AppendPlan, appends: Sequence[Append]
    ) -> list[Outcome | ProtocolError] | Known:
        """Commit the plan; if another writer was first, return the head after its batch. A partition that
        throttles a large put may still accept a pointer, so a large append then becomes mail."""
        try:
            self.commit(head, plan)
        except TailMoved as moved:
            return self.adopt(head, moved.winner)
        except Busy:
            is_large = len(appends) == 1 and appends[0].messages.size > MAIL_BYTES and fits_mail(appends[0])
            if self._losses or not is_large:
                raise
            self._losses = 1
            self._stores.rivals.lose(head.record.incarnation, self._stores.clock_ms())
            return Known(head, is_fresh=False)
        return plan.results

    def mailable(self, record: StreamRecord, append: Append) -> Append:
        """The append as mail. A large body goes to S3 once, and the mail points to it."""
        data, lengths = append.messages.data, append.messages.lengths
        if len(data) <= MAIL_BYTES:
            return append
        return replace(append, messages=Messages(b"", lengths, self.spill(record, data).body))

    def spill(self, record: StreamRecord, data: bytes) -> Spilled:
        """Put the body into S3, unless it is there already for this incarnation."""
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
            appends.append(append_of(self._stores, record, request))
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
        """The head for the next decision: the head after the batch that won, or, from the second loss on, the
        current tail. After a tombstone the stream is read again: a new stream may have its name."""
        self._losses += 1
        rivals, incarnation, now_ms = self._stores.rivals, head.record.incarnation, self._stores.clock_ms()
        if self._losses == 1:
            self._has_lost_before = rivals.on(incarnation).was_in(tails.RIVALS_MS, now_ms)
        rivals.lose(incarnation, now_ms)
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
    """Put the append's body into S3 before its turn if the append will probably be accepted.

    The remembered state allows only a guess: the append's turn decides again, and puts a missing body there.
    A sequence gap does not count, because appends before this one may fill it. The body of a refused append
    is an orphan under the incarnation's prefix, and is removed with the log (`batch_blob_key`).

    Raises StreamNotFound, and StorageUnavailable, StorageSilent or Busy for S3; then nothing has changed.
    """
    head = _remembered_or_read(stores, key).head
    parsed = append_of(stores, head.record, request)
    data = parsed.messages.data
    if parsed.fault is not None or len(data) <= INLINE_BYTES:
        return None
    if not unknown_producers(head.tail, [parsed]):
        plan = plan_appends(head.tail, [parsed], {})
        if not plan.writes and not isinstance(plan.results[0], SequenceGap):
            return None
    return replace(_put_blob(stores, head.record, data), parsed=parsed)


def _remembered_or_read(stores: Stores, key: StreamKey) -> Known:
    """The remembered head, or a fresh one if it has expired: another process may have renewed the stream."""
    now_ms = stores.clock_ms()
    head = stores.tails.get(key, now_ms)
    if head is None or head.is_expired(now_ms):
        return Known(load_head(stores, key), is_fresh=True)
    is_stale = now_ms - head.learned_ms > tails.STALE_MS
    if is_stale and stores.rivals.on(head.record.incarnation).was_in(tails.SHARED_MS, now_ms):
        return Known(reload_tail(stores, head.record), is_fresh=True)
    return Known(head, is_fresh=False)


def _put_blob(stores: Stores, record: StreamRecord, data: bytes) -> Spilled:
    return Spilled(record.incarnation, data, stores.put_body(record.incarnation, data))


def append_of(stores: Stores, record: StreamRecord, request: AppendRequest) -> Append:
    """Parse the body by the stream's content type; closing alone needs no body (§5.2). An error in the body
    is kept for the decision, which checks the closed state first (§5.2, error precedence)."""
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
    """Parse the body, outside the event loop if this may take long. Raises as `parse_messages`."""
    if len(body) <= _ON_THE_SPOT_BYTES or not content_type.is_json:
        return parse_messages(content_type, body)
    return stores.concurrency.compute(partial(parse_messages, content_type, body))

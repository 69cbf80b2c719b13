"""Combining: when many writers append to one stream, a single writer commits the appends of all.

A writer that has lost the race for the tail posts its append as mail (`log/combining.py`). The writer then
polls the box and the place of the next batch. A writer whose turn it is commits all mail in the box with the
conditional write of every append. The appends are decided in order, as in a group commit. The other writers
find their outcomes in that batch. Turns only save writes: any writer may commit at any time, so there is no
lock, no lease and no transaction (`docs/internals/races.md`).

The simpler way, a race with back-off and jitter, was tried first: 32 simulated Lambda environments reached
146 appends a second at 5.4 write units each, and with 128 some appends were refused. Combining reached about
1,150 a second at 1.2 write units. A transaction that commits the batch and removes the mail would cost two
more write units for each mail, and a late copy of the mail would be committed again.

| state  | event                                                            | next                     |
| ------ | ---------------------------------------------------------------- | ------------------------ |
| decide | the append is accepted on the head, and is in no open box        | post it, and look        |
|        | it is accepted, and is in an open box                            | wait, or commit          |
|        | it is refused, or a duplicate, and its mail is in no next batch  | back to `append.py`      |
| wait   | no batch is there                                                | look again, or commit    |
|        | a batch is there that names the mail                             | done                     |
|        | a batch is there that does not                                   | adopt it, decide         |
| commit | nothing had the key                                              | done                     |
|        | another batch is there                                           | as a batch found by wait |
| any    | a tombstone is there: the mail was not and will not be committed | read the stream, decide  |

- **The chain is walked batch by batch** while the mail is open, because only the next two batches may hold
  the mail. If neither holds it, the tail is read, and the append is posted again.
- **A writer that gives up** while its mail is open answers that the outcome is unknown. This happens only if
  storage fails: otherwise the mail is settled after two batches, or this writer's commit is the next batch.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from itertools import groupby
from typing import Final

from tidemark.blobs import joined_key
from tidemark.log import append as log
from tidemark.log import combining
from tidemark.log.due import schedule_packing
from tidemark.log.records import Batch, Checksums, Entry, Pack, Tombstone
from tidemark.log.schema import encode_mail, encode_receipt
from tidemark.log.tails import THROTTLED_MS, StreamHead
from tidemark.protocol import errors
from tidemark.protocol.append import Append, AppendPlan, Kind, Outcome
from tidemark.protocol.messages import Messages, StoredBody
from tidemark.protocol.producer import ProducerState
from tidemark.protocol.tail import Tail
from tidemark.service.load import NONE_KNOWN, Known, decide, head_from, load_head, reload_tail
from tidemark.service.stores import Stores

_log = logging.getLogger("tidemark")

#: Looks, of about 5 ms each, after which settled mail is not posted again.
_MAX_LOOKS: Final = 200
#: Approximate duration of a storage call, for the time that a leader has waited.
_CALL_SECONDS: Final = 0.005
#: Every fourth look is for the batch and not for its receipt: the writer may die before writing the receipt.
_LOOKS_FOR_RECEIPTS: Final = 4
#: Highest factor of a throttled writer's pause, and the decrease after each look that succeeds.
_MOST_BACK_OFF: Final = 16.0
_BACK_OFF_STEP: Final = 0.5
#: Longest random Retry-After of a refused writer, in seconds.
_LATEST_SECONDS: Final = 5


def back_later() -> errors.Busy:
    return errors.Busy(random.randint(1, _LATEST_SECONDS))


def combine(stores: Stores, head: StreamHead, own: Append, append_id: str) -> Outcome | Known:
    """Post the append as mail, and wait until the mail is committed. `own` must fit (`fits_mail`).

    Returns the outcome; or the head for a new decision, if the mail was not and will not be committed. Raises
    StreamNotFound, SoftDeleted, Busy and storage's errors if nothing was written, else OutcomeUnknown.
    """
    return _Combining(stores, head, own, append_id).run()


class _LogEnded(Exception):
    """A tombstone ended the log before the mail was committed."""


class _Combining:
    """The state of one append that others may commit."""

    def __init__(self, stores: Stores, head: StreamHead, own: Append, append_id: str) -> None:
        self._stores = stores
        self._record = head.record
        self._own = own
        self._append_id = append_id
        if not stores.rivals.sender:
            stores.rivals.sender = stores.new_id()
        # A box is read in the order of its ids. The hash of the append varies it: no sender is always first.
        self._id = _digest(append_id) + _digest(stores.rivals.sender)
        #: The posted mail; None while no other writer can commit the append.
        self._mail: combining.Mail | None = None
        self._back_off = 1.0
        self._was_throttled = False
        self._decided_on: Tail | None = None
        self._looked_up = NONE_KNOWN
        self._adopt(head)

    def _adopt(self, head: StreamHead) -> None:
        self._head = head
        #: Whether other batches may have followed the head, which matters only if no mail is open.
        self._is_behind = False
        self._found: Sequence[combining.Mail] = ()
        self._open: list[combining.Mail] = []
        self._has_looked = False
        self._looks = 0
        self._waited_seconds = 0.0
        self._ready = 0

    def run(self) -> Outcome | Known:
        try:
            return self._run()
        except _LogEnded:
            self._stores.tails.forget(self._record.key)
            return Known(load_head(self._stores, self._record.key), is_fresh=True)
        except (errors.Busy, errors.StorageUnavailable, errors.StorageSilent) as failure:
            if self._mail is not None:
                raise errors.OutcomeUnknown from failure
            if isinstance(failure, errors.Busy):
                raise back_later() from failure
            raise

    def _run(self) -> Outcome | Known:
        for looks in range(2 * _MAX_LOOKS):
            try:
                answer = self._step(looks)
            except errors.Busy:
                if self._mail is None:
                    raise
                answer = self._throttled()
            if answer is not None:
                return answer
        raise errors.OutcomeUnknown

    def _throttled(self) -> Outcome | None:
        """Go on waiting after throttling: the mail stays open until it is settled."""
        self._decided_on = None
        self._step_back()
        return self._wait()

    def _step(self, looks: int) -> Outcome | Known | None:
        if self._is_behind:
            latest = reload_tail(self._stores, self._record)
            if latest.record.incarnation != self._record.incarnation:
                return Known(latest, is_fresh=True)
            self._adopt(latest)
        if self._decided_on != self._head.tail:
            self._decided_on = self._head.tail
            # While the mail is open, reuse the producer that was looked up before the mail was posted. The
            # producer is looked up again before the append is posted again.
            known = self._looked_up if self._mail is not None else NONE_KNOWN
            plan = decide(self._stores, self._head, [self._own], known)
            self._looked_up = plan.looked_up
            if not plan.writes:
                return self._refused()
        if self._mail is None:
            if looks > _MAX_LOOKS:
                raise errors.Busy
            self._check_room()
            self._post()
        return self._commit() if self._is_its_turn() else self._wait()

    def _refused(self) -> Outcome | Known | None:
        """A refusal on the head's tail is final (`log/combining.py`), but counts only on a fresh read.

        A producer's item may cause the refusal, and may be newer than the head if there is a next batch. The
        next batch may hold this very mail, which is no duplicate of itself, so that batch is read first. (A
        closed stream has no next batch; the empty batch that closed it may be at its tail's offset.)
        """
        if self._mail is None:
            return Known(self._head, is_fresh=False)
        if not self._head.tail.closed:
            batch = log.find_entry(self._stores.table, self._record, self._head.tail.offset)
            if batch is not None:
                return self._advance(batch)
        fresh = load_head(self._stores, self._record.key)
        is_same = fresh.record.incarnation == self._record.incarnation
        if is_same and decide(self._stores, fresh, [self._own]).writes:
            raise errors.OutcomeUnknown
        return Known(fresh, is_fresh=True)

    # --- mail ---

    def _post(self) -> None:
        box, now_ms = self._head.tail.offset, self._stores.clock_ms()
        mail = combining.Mail(self._id, box, now_ms, self._own, self._looked_up)
        self._mail = mail

        def posting() -> None:
            try:
                # No condition: a late copy is identical and has the same key.
                self._stores.table.put(encode_mail(self._record.incarnation, mail))
            except (errors.Busy, errors.StorageUnavailable, errors.StorageSilent):
                self._mail = None  # The mail was not posted.
                raise

        self._at_once(posting, *([self._look] if self._may_lead() else []))

    def _look(self) -> None:
        """Read the boxes whose mail the next batch may commit. If throttled, keep the earlier result."""
        assert self._mail is not None, "an append waits as mail"
        boxes = combining.boxes_to_look_into(self._head.chain_end, self._mail, self._looks)
        try:
            found = self._stores.concurrency.each(
                lambda box: log.collect(self._stores.table, self._record, box), boxes
            )
        except errors.Busy:
            self._step_back()
            return
        self._found = [mail for box in found for mail in box]
        self._has_looked = True

    def _step_back(self) -> None:
        """Double the pause between looks, because the partition is throttled."""
        self._back_off = min(2 * self._back_off, _MOST_BACK_OFF)
        self._was_throttled = True
        self._stores.rivals.throttle(self._record.incarnation, self._stores.clock_ms())

    def _check_room(self) -> None:
        """Raises Busy before anything is written if the stream has too many writers."""
        met = self._stores.rivals.on(self._record.incarnation)
        is_throttled = self._stores.clock_ms() - met.throttled_ms < THROTTLED_MS
        if combining.is_refused(self._head.chain_end, random.random(), is_throttled=is_throttled):
            raise errors.Busy

    def _at_once(self, *calls: Callable[[], None]) -> None:
        self._stores.concurrency.each(lambda call: call(), calls)

    # --- turns ---

    @property
    def _view(self) -> combining.BoxView:
        lately = round(self._stores.rivals.on(self._record.incarnation).size)
        writers = max(len(self._open), len(self._head.mailed), lately)
        found = sum(len(mail.append.messages.data) for mail in self._found)
        return combining.BoxView(writers, max(found, writers * len(self._own.messages.data)), self._looks)

    def _may_lead(self) -> bool:
        return combining.may_lead(self._id, self._view)

    def _is_its_turn(self) -> bool:
        assert self._mail is not None, "an append waits as mail"
        if not self._has_looked:
            return False
        end = self._head.chain_end
        self._open = combining.open_mail(end, self._mail, self._found, self._stores.clock_ms())
        waits = combining.waits_for_senders(self._view, is_stored=self._own.messages.stored is not None)
        lingers = waits and self._waited_seconds < combining.SENDERS_SECONDS
        if lingers and not combining.is_complete(end, self._open):
            return False
        self._ready += 1
        before = combining.rank(self._mail, end, self._open, self._view)
        return self._may_lead() and self._ready > before

    def _wait(self) -> Outcome | None:
        pause = self._back_off * combining.pause_seconds(self._head.chain_end, self._found, self._view)
        self._stores.concurrency.sleep(pause)
        self._waited_seconds += pause + _CALL_SECONDS
        self._looks += 1
        has_receipts = (
            len(self._head.mailed) > combining.RECEIPTS_FROM and self._looks % _LOOKS_FOR_RECEIPTS > 0
        )
        find = log.find_receipt if has_receipts else log.find_entry
        found: list[Entry | None] = []

        def find_next() -> None:
            try:
                found.append(find(self._stores.table, self._record, self._head.tail.offset))
            except errors.Busy:
                self._step_back()
            else:
                self._back_off = max(1.0, self._back_off - _BACK_OFF_STEP)

        self._has_looked = False
        self._at_once(find_next, *([self._look] if self._may_lead() else []))
        entry = found[0] if found else None
        return None if entry is None else self._advance(entry)

    # --- the next batch ---

    def _commit(self) -> Outcome | None:
        """Commit all open mail, or adopt the winner's batch. If throttled, leave the commit to others."""
        if self._head.is_expired(self._stores.clock_ms()):
            self._check_renewed()
        mails = combining.fitting(self._id, self._open)
        known: dict[str, ProducerState | None] = {}
        for mail in mails:
            if mail.box == self._head.tail.offset:
                known.update(mail.looked_up)
        plan = decide(self._stores, self._head, [mail.append for mail in mails], known)
        if not plan.writes:
            # This head accepted the append a moment ago, so a producer's item is newer than the head: another
            # writer has committed the next batch.
            return self._wait()
        batch = self._batch(mails, plan)
        self._has_looked = False
        try:
            log.put_batch(self._stores.table, self._record, batch, plan.pushed_out.values())
        except log.TailMoved as moved:
            return self._advance(moved.winner)
        except errors.Busy:
            self._step_back()
            return None
        self._stores.recent.keep(self._record.incarnation, batch)
        if len(self._head.mailed) > combining.RECEIPTS_FROM:
            # A writer that finds no receipt looks for the batch.
            with suppress(
                errors.Busy, errors.StorageUnavailable, errors.StorageSilent, errors.OutcomeUnknown
            ):
                self._stores.table.put(encode_receipt(self._record.incarnation, batch))
        stores = self._stores
        schedule_packing(stores.table, self._record, batch, stores.packing, stores.clock_ms())
        return self._advance(batch)

    def _batch(self, mails: Sequence[combining.Mail], plan: AppendPlan) -> Batch:
        """The batch of the accepted mail. The writers of refused mail and duplicates decide again."""
        accepted = [
            combining.Mailed(mail.id, result.next_offset)
            for mail, result in zip(mails, plan.results, strict=True)
            if isinstance(result, Outcome) and result.kind is Kind.APPENDED
        ]
        posted, lengths, appends = plan.body()
        data, blob, checksums = self._stored_body(plan, posted)
        return Batch(
            start=plan.before.offset,
            after=plan.after,
            append_id=self._append_id,
            time_ms=self._stores.clock_ms(),
            data=data,
            blob=blob,
            lengths=lengths,
            appends=appends,
            mailed=tuple(accepted),
            checksums=checksums,
        )

    def _stored_body(self, plan: AppendPlan, posted: bytes) -> tuple[bytes | None, str | None, Checksums]:
        """The bytes of the batch, or their name in S3, and the checksums."""
        before, start, accepted = self._head.crc, plan.before.offset, plan.accepted
        if plan.size <= combining.COMBINED_INLINE_BYTES and not any(each.stored for each in accepted):
            return posted, None, Checksums.of(before, start, posted)
        runs = [list(run) for _, run in groupby(accepted, key=lambda each: each.stored)]
        bodies = self._stores.concurrency.each(self._stored, runs)
        blob = joined_key([(body.blob, size) for body, size in bodies])
        return None, blob, Checksums.of_bodies(before, start, [(body.crc, size) for body, size in bodies])

    def _stored(self, run: Sequence[Messages]) -> tuple[StoredBody, int]:
        """Put the bodies that are in the box into S3 as one object."""
        size = sum(each.size for each in run)
        if (stored := run[0].stored) is not None:
            return stored, size
        return self._stores.put_body(self._record.incarnation, b"".join(each.data for each in run)), size

    def _check_renewed(self) -> None:
        """Read the expiry again, because reads may have renewed the stream. The outcome for an expired stream
        is unknown: a writer whose clock is behind may commit the mail."""
        try:
            record = load_head(self._stores, self._record.key).record
        except (errors.StreamNotFound, errors.SoftDeleted) as ended:
            raise errors.OutcomeUnknown from ended
        if record.incarnation == self._record.incarnation:
            self._record = record
            self._head = replace(self._head, record=record)

    def _advance(self, batch: Entry) -> Outcome | None:
        """Adopt the batch that follows the head."""
        assert batch.start == self._head.tail.offset, "the chain is walked batch by batch"
        if isinstance(batch, Tombstone):
            self._mail = None
            raise _LogEnded
        if isinstance(batch, Pack):
            # The process was suspended until the batch was packed. A pack does not name mail.
            raise errors.OutcomeUnknown
        lost_to_a_racer = bool(self._open) and not batch.mailed
        mails = self._open
        self._adopt(head_from(self._record, batch, self._stores.clock_ms()))
        self._stores.tails.learn(self._head)
        writers = max(len(batch.mailed), len(mails))
        self._stores.rivals.meet(self._record.incarnation, writers, self._stores.clock_ms())
        mailed = self._head.chain_end.holds(self._id)
        if mailed is not None:
            self._check_size_of_own_mail(batch)
            if not self._was_throttled:
                self._stores.rivals.flow(self._record.incarnation)
            claim, end = self._own.claim, mailed.end
            producer = (
                None if claim is None else ProducerState(claim.producer_id, claim.epoch, claim.seq, end)
            )
            return Outcome(
                Kind.APPENDED, end, closed=False, producer=producer, incarnation=self._record.incarnation
            )
        if self._mail is not None and not self._head.chain_end.is_open(self._mail.box, self._id):
            self._mail = self._decided_on = None
            self._is_behind = True
            if self._head.chain_end.is_full:  # Neither of the two batches had room for the mail.
                raise errors.Busy
        elif lost_to_a_racer:
            self._found, self._has_looked = mails, True
        return None

    def _check_size_of_own_mail(self, batch: Batch) -> None:
        """Raises OutcomeUnknown if the batch holds another number of bytes of this mail than were posted: its
        writer has misread the mail. A batch has one checksum, and none for each mail."""
        size = self._head.chain_end.size_of(self._id)
        if size != self._own.messages.size:
            _log.error("mail is misread: batch %s has %d bytes of %s", batch.append_id, size, self._id)
            raise errors.OutcomeUnknown


def _digest(name: str) -> str:
    return blake2b(name.encode(), digest_size=combining.MAIL_ID_BYTES // 2).hexdigest()

"""Combining: when an append may be committed by another writer than its own, and which writer does it.

A writer that has lost the race for the tail posts its append as *mail* into the *box* of a tail, which is the
offset of the next batch. Any writer of a batch may put mail into it, and the batch names the mail that it
holds. A mail's key limits which two batches may commit it, so it is committed at most once:

- **Mail may be committed by the batch at its box's offset, or by the one right after that**, and by no other.
  There is one batch at most at each offset, so these two settle for good what becomes of it.
- **The writer of the second batch has seen the first**: the first carries the tail on which the writer
  decides. Mail that it names is not open any more.

So a writer knows that its mail is in the log when one of the two batches names it, and that it never will be
when both are there and do not name it. It must not post the append again before that. No clock and no removal
has a part in this.

- **Mail is posted only for an append that the state at its box accepts.** Such an append is later accepted,
  or refused for good: a Stream-Seq only rises, an epoch only rises, and a number that was a producer's next
  one stays so or becomes a duplicate. So its writer may answer with a refusal although the mail is still
  open.

Which writer commits is no question of safety: any may at any time. To save writes and reads, one of the
waiting writers should commit, after waiting for the writers of the last batch. That keeps the writers in
step: all writers of one batch are in the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidemark.protocol.append import Append
from tidemark.protocol.producer import ProducerState

#: An id has four bytes of the append, then four of the sender, which is a process. Boxes are read in the
#: order of ids; with the sender first, one sender would come first in every box.
MAIL_ID_BYTES: Final = 8
SENDER_DIGITS: Final = 8
#: The mail of a larger append is a pointer to S3, because a box is read whole.
MAIL_BYTES: Final = 2 * 1024
#: The limits of one batch. With the state that it carries, it fits an item.
MAX_APPENDS: Final = 160
MAX_BYTES: Final = 1024 * 1024
#: The limit with bytes that are in S3: a read may have to answer them at once.
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
_NEARLY_ALL_BYTES: Final = MAX_BATCH_BYTES - 128 * 1024
#: A larger batch puts its bytes into S3, and then races with a pointer of one write unit: a lost put is
#: billed by the size of its item, S3 by the object.
COMBINED_INLINE_BYTES: Final = 12 * 1024
#: How long a writer waits for its mail. Others leave out older mail, only to keep the appends of dead writers
#: out of the log. All use storage's clock, right to two seconds (`aws/clock.py`).
MAIL_LIVES_MS: Final = 20_000

#: In a larger crowd only a few look into the box, because every look reads it whole.
SMALL_CROWD: Final = 32
#: In a larger crowd only writers with mail in the previous box look into it.
_FEW_WRITERS: Final = 16
_LEADS: Final = 8
_LEADS_OF_MUCH: Final = 2
#: The bytes of a mail's item beside those of the append.
_MAIL_OVERHEAD_BYTES: Final = 100
#: A lead waits so long, least and most, for senders of the last batch; the lot of its mail decides.
_LINGER_SECONDS: Final = (0.004, 0.012)
#: A batch of more appends shows more writers than one stream can take: then a share of the appends is refused
#: before anything is written. Of the appends of a throttled writer, a larger share is.
_MOST_WRITERS: Final = 128
_REFUSED: Final = 0.25
_REFUSED_WHERE_THROTTLED: Final = 0.75
#: In crowds of this size or more, the others read a receipt, not the batch.
RECEIPTS_FROM: Final = 16
_HIGHEST_RANK: Final = 3

#: The pause before the first look. Posts are dated in whole milliseconds: the time of the last is not exact.
_FIRST_PAUSE_SECONDS: Final = 0.0012
#: The pause between two looks: the least, and for each writer of a larger crowd.
_PAUSE_SECONDS: Final = 0.0008
_PAUSE_SECONDS_EACH: Final = 0.0001
#: The duration of another writer's commit: a look, a batch and a receipt.
_OTHERS_SECONDS: Final = 0.011
_RECEIPT_SECONDS: Final = 0.005
#: What S3 adds, if the batch's bytes go there.
_S3_SECONDS: Final = 0.030
_WIDEST_SPREAD_MS: Final = 6
_USUAL_SPREAD_MS: Final = 3


@dataclass(frozen=True, slots=True)
class Mail:
    """An append that other writers may commit. `id` is 16 hexadecimal digits, `box` the offset that it was
    posted for.

    `looked_up` has the state of a producer that the tail at the box does not carry, as its writer found it,
    or None if it has none. It is right for the batch at the box's offset, which is written only if no batch
    came between; for the next batch it may be too old.
    """

    id: str
    box: int
    posted_ms: int
    append: Append
    looked_up: Mapping[str, ProducerState | None] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Mailed:
    """Mail that a batch has committed, and the offset after it."""

    mail_id: str
    end: int


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """The offset of the next batch, the start of the last one (None: not known), and the mail in the last
    one."""

    offset: int
    last_start: int | None
    mailed: tuple[Mailed, ...]

    def holds(self, mail_id: str) -> Mailed | None:
        return next((mailed for mailed in self.mailed if mailed.mail_id == mail_id), None)

    @property
    def is_full(self) -> bool:
        """Whether the last batch has so many appends or bytes that it may have left mail out."""
        size = self.offset - (self.last_start or 0)
        return len(self.mailed) >= MAX_APPENDS or (bool(self.mailed) and size > _NEARLY_ALL_BYTES)

    def size_of(self, mail_id: str) -> int:
        """The bytes of this mail in the last batch, which names it."""
        starts = [self.last_start or 0, *(mailed.end for mailed in self.mailed)]
        named = zip(starts, self.mailed, strict=False)
        return next(mailed.end - start for start, mailed in named if mailed.mail_id == mail_id)

    def is_open(self, box: int, mail_id: str) -> bool:
        """Whether the next batch may commit the mail."""
        if box == self.offset:
            return True
        return box == self.last_start and self.holds(mail_id) is None


def fits_mail(append: Append) -> bool:
    """Whether the append may be posted as mail. One that closes the stream or has a precondition races
    instead."""
    is_plain = append.fault is None and append.if_match is None and not append.close
    return is_plain and append.messages.size > 0


def open_mail(end: ChainEnd, own: Mail, found: Sequence[Mail], now_ms: int) -> list[Mail]:
    """The mail that the next batch may commit, the oldest first. The writer's own mail is always open: its
    client waits for it."""
    mails = {
        mail.id: mail
        for mail in found
        if end.is_open(mail.box, mail.id) and now_ms - mail.posted_ms < MAIL_LIVES_MS
    }
    mails[own.id] = own
    return sorted(mails.values(), key=lambda mail: (mail.posted_ms, mail.id))


def fitting(own_id: str, mails: Sequence[Mail]) -> list[Mail]:
    """The writer's own mail and the oldest of the others' that fit one batch, in the order of posting."""
    taken: list[Mail] = []
    size = mailed_size = 0
    for mail in sorted(mails, key=lambda mail: mail.id != own_id):
        size += mail.append.messages.size
        mailed_size += len(mail.append.messages.data)
        if len(taken) == MAX_APPENDS or size > MAX_BATCH_BYTES or mailed_size > MAX_BYTES:
            break
        taken.append(mail)
    return sorted(taken, key=lambda mail: (mail.posted_ms, mail.id))


@dataclass(frozen=True, slots=True)
class Crowding:
    """A waiting writer's view of the others: how many `writers` it expects, how many bytes (`size`) wait in
    the box, and how often it has looked since the last batch."""

    writers: int
    size: int
    looks: int


def lot(mail_id: str) -> float:
    """A number between 0 and 1, another one for each append."""
    digits = mail_id[:-SENDER_DIGITS]
    return int(digits, 16) / float(16 ** len(digits))


def may_lead(mail_id: str, crowd: Crowding) -> bool:
    """Whether a writer may lead. Right after posting many may, then few, and then ever more while nothing
    happens. Every look reads the box whole, so at first only two look into a large one."""
    place = lot(mail_id) * crowd.writers
    if crowd.size + _MAIL_OVERHEAD_BYTES * crowd.writers > COMBINED_INLINE_BYTES:
        return place < _LEADS_OF_MUCH * 2 ** (crowd.looks / 3)
    return (not crowd.looks and crowd.writers <= SMALL_CROWD) or place < _LEADS * 2 ** (crowd.looks / 2)


def is_refused(end: ChainEnd, chance: float, *, is_throttled: bool) -> bool:
    """Whether an append that is not posted yet is told to come back later; `chance` is between 0 and 1."""
    if is_throttled:
        return chance < _REFUSED_WHERE_THROTTLED
    return len(end.mailed) > _MOST_WRITERS and chance < _REFUSED


def boxes_to_look_into(end: ChainEnd, own: Mail, looks: int) -> list[int]:
    """The box of the tail, and the one before it where it is cheap or needed."""
    if end.last_start is None:
        return [end.offset]
    if own.box != end.last_start and len(end.mailed) > _FEW_WRITERS and looks < _LEADS:
        return [end.offset]
    return [end.offset, end.last_start]


def waits_for_senders(crowd: Crowding, *, is_stored: bool) -> bool:
    """Whether a lead waits for senders that were in the last batch. Where bodies go to S3 first,
    senders return later: wait only when many writers compete."""
    return not is_stored or crowd.writers > SMALL_CROWD


def linger_seconds(mail_id: str) -> float:
    least, most = _LINGER_SECONDS
    return least + (most - least) * lot(mail_id)


def is_complete(end: ChainEnd, mails: Sequence[Mail]) -> bool:
    """Whether all senders that the last batch names have posted again."""
    before = {mailed.mail_id[-SENDER_DIGITS:] for mailed in end.mailed}
    return before <= {mail.id[-SENDER_DIGITS:] for mail in mails}


def rank(own: Mail, end: ChainEnd, mails: Sequence[Mail], crowd: Crowding) -> int:
    """The number of writers before this one. All `mails` are open, and all that it waits for are there.

    At the first look the newest post commits, because its writer saw all others; if the group has doubled,
    the oldest does. At later looks it is the newest among those that may lead.
    """
    place = (own.posted_ms, own.id)
    if crowd.looks:
        later = [mail for mail in mails if (mail.posted_ms, mail.id) > place]
        before = sum(may_lead(mail.id, crowd) for mail in later)
    elif len(mails) > 2 * len(end.mailed):
        before = sum((mail.posted_ms, mail.id) < place for mail in mails)
    else:
        before = 0
    return min(before, _HIGHEST_RANK)


def pause_seconds(end: ChainEnd, found: Sequence[Mail], crowd: Crowding) -> float:
    """The pause before the next look. The first look should come right after the batch, so it is later for
    writers that posted early, by the spread of the posts before."""
    s3_seconds = _S3_SECONDS if crowd.size > COMBINED_INLINE_BYTES else 0.0
    if crowd.looks:
        each = _PAUSE_SECONDS_EACH * (crowd.writers - _FEW_WRITERS)
        return max(_PAUSE_SECONDS, each) + s3_seconds / 10
    if not found:
        return _OTHERS_SECONDS + s3_seconds + _PAUSE_SECONDS_EACH * crowd.writers
    before = [mail.posted_ms for mail in found if mail.box != end.offset]
    posted = len(found) - len(before)
    spread_ms = min(max(before) - min(before), _WIDEST_SPREAD_MS) if before else _USUAL_SPREAD_MS
    early = spread_ms / 1000 * max(0.0, 1 - posted / crowd.writers) if crowd.writers else 0.0
    receipt = _RECEIPT_SECONDS if len(end.mailed) > RECEIPTS_FROM else 0.0
    return _FIRST_PAUSE_SECONDS + early + receipt

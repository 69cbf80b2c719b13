"""Combining: one writer commits the appends of several, to save writes on a crowded stream.

A writer that has lost the race for the tail posts its append as *mail* into the *box* of a tail. A box is
named by the offset at which the next batch begins. Any writer may put this mail into its batch, and the batch
lists the ids of its mail. Two rules limit which batches may commit a mail, so it is committed at most once:

- **Mail may be committed only by the batch at its box's offset or by the next batch.** At most one batch
  exists at each offset, so these two batches decide for good whether the mail is committed.
- **The writer of the second batch has seen the first**, because the first batch carries the tail on which the
  writer decides. Mail listed in the first batch is no longer open.

A writer therefore knows that its mail is in the log when one of the two batches lists it, and that the mail
will never be committed when both exist and neither lists it. Until then the writer must not post the append
again. The rule needs no clock and no removal of mail.

- **Mail is posted only for an append that the state at its box accepts.** Such an append is later accepted,
  or refused for good: a Stream-Seq and an epoch only rise, and a producer's next number stays the next one or
  becomes a duplicate. The writer may therefore answer with a refusal although the mail is still open.

Any writer may commit at any time without a risk to safety. To save writes and reads, one of the waiting
writers should commit, after it has waited for the writers of the last batch. The writers then stay in step:
all writers of one batch are in the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidemark.protocol.append import Append
from tidemark.protocol.producer import ProducerState

#: A mail id is four bytes of the append, then four bytes of the sender (a process). Boxes are read in the
#: order of ids; with the sender first, the same sender would lead every box.
MAIL_ID_BYTES: Final = 8
SENDER_DIGITS: Final = 8
#: The mail of a larger append is a pointer to S3, because a box is read whole.
MAIL_BYTES: Final = 2 * 1024
#: The most appends of one batch. The batch and its state fit one item.
MAX_APPENDS: Final = 160
#: The limit of a batch whose bytes are in S3: a read may have to return them in one response.
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
_NEARLY_ALL_BYTES: Final = MAX_BATCH_BYTES - 128 * 1024
#: A larger batch puts its bytes into S3 and races with a pointer of one write unit: a lost put is billed by
#: the size of its item, S3 by the object.
COMBINED_INLINE_BYTES: Final = 12 * 1024
#: Milliseconds for which a writer waits for its mail. Other writers skip older mail, only to keep appends of
#: dead writers out of the log. All use storage's clock, right to 2 s (`aws/clock.py`).
MAIL_LIVES_MS: Final = 20_000

#: In a larger group only a few writers look into the box, because every look reads the whole box.
SMALL_GROUP: Final = 32
#: In a larger group only writers with mail in the previous box look into that box.
_FEW_WRITERS: Final = 16
_LEADS: Final = 8
_LEADS_OF_MUCH: Final = 2
#: Overhead of a mail's item beside its append, in bytes.
_MAIL_OVERHEAD_BYTES: Final = 100
#: Seconds for which a leader waits for the senders of the last batch.
SENDERS_SECONDS: Final = 0.008
#: A batch of more appends shows more writers than one stream can serve: a share of the appends is then
#: refused before any write, and a larger share of a throttled writer's appends.
_MOST_WRITERS: Final = 128
_REFUSED: Final = 0.25
_REFUSED_WHERE_THROTTLED: Final = 0.75
#: In groups of this size or more, the other writers read a receipt in place of the batch.
RECEIPTS_FROM: Final = 16
_HIGHEST_RANK: Final = 3

#: The pause before the first look. Posts are dated in whole milliseconds, so the last one's time is inexact.
_FIRST_PAUSE_SECONDS: Final = 0.0012
#: The pause between two looks: the minimum, and the addition for each writer of a larger group.
_PAUSE_SECONDS: Final = 0.0008
_PAUSE_SECONDS_EACH: Final = 0.0001
#: The duration of another writer's commit: a look, a batch and a receipt.
_OTHERS_SECONDS: Final = 0.011
_RECEIPT_SECONDS: Final = 0.005
#: The additional time if the batch's bytes go to S3.
_S3_SECONDS: Final = 0.030
_WIDEST_SPREAD_MS: Final = 6
_USUAL_SPREAD_MS: Final = 3


@dataclass(frozen=True, slots=True)
class Mail:
    """An append that other writers may commit. `id` is 16 hexadecimal digits; `box` is the offset of the box.

    `looked_up` holds the state, as the writer found it, of a producer that the tail at the box does not
    carry; None for a producer without state. The state is right for the batch at the box's offset, which is
    written only if no batch came between. For the next batch it may be too old.
    """

    id: str
    box: int
    posted_ms: int
    append: Append
    looked_up: Mapping[str, ProducerState | None] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Mailed:
    """A committed mail in a batch, and the offset after it."""

    mail_id: str
    end: int


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """The offset of the next batch, and the start (None: not known) and mail of the last one."""

    offset: int
    last_start: int | None
    mailed: tuple[Mailed, ...]

    def holds(self, mail_id: str) -> Mailed | None:
        return next((mailed for mailed in self.mailed if mailed.mail_id == mail_id), None)

    @property
    def is_full(self) -> bool:
        """Whether the last batch is large enough that it may have left mail out."""
        size = self.offset - (self.last_start or 0)
        return len(self.mailed) >= MAX_APPENDS or (bool(self.mailed) and size > _NEARLY_ALL_BYTES)

    def size_of(self, mail_id: str) -> int:
        """Return the bytes of this mail in the last batch, which lists it."""
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
    """Return the mail that the next batch may commit, the oldest first. The writer's own mail is always open:
    its client waits for the result."""
    mails = {
        mail.id: mail
        for mail in found
        if end.is_open(mail.box, mail.id) and now_ms - mail.posted_ms < MAIL_LIVES_MS
    }
    mails[own.id] = own
    return sorted(mails.values(), key=lambda mail: (mail.posted_ms, mail.id))


def fitting(own_id: str, mails: Sequence[Mail]) -> list[Mail]:
    """Return the writer's own mail and the oldest other mail that fit one batch, in the order of posting."""
    taken: list[Mail] = []
    size = 0
    for mail in sorted(mails, key=lambda mail: mail.id != own_id):
        size += mail.append.messages.size
        if len(taken) == MAX_APPENDS or size > MAX_BATCH_BYTES:
            break
        taken.append(mail)
    return sorted(taken, key=lambda mail: (mail.posted_ms, mail.id))


@dataclass(frozen=True, slots=True)
class BoxView:
    """A waiting writer's view: the `writers` it expects, the bytes in the box, its looks since the last
    batch."""

    writers: int
    size: int
    looks: int


def may_lead(mail_id: str, view: BoxView) -> bool:
    """Whether a writer may lead. Right after posting many may, then few, and then more with each look. Every
    look reads the whole box, so at first only two writers look into a large one."""
    digits = mail_id[:-SENDER_DIGITS]
    place = int(digits, 16) / float(16 ** len(digits)) * view.writers
    if view.size + _MAIL_OVERHEAD_BYTES * view.writers > COMBINED_INLINE_BYTES:
        return place < _LEADS_OF_MUCH * 2 ** (view.looks / 3)
    return (not view.looks and view.writers <= SMALL_GROUP) or place < _LEADS * 2 ** (view.looks / 2)


def is_refused(end: ChainEnd, chance: float, *, is_throttled: bool) -> bool:
    """Whether an append is refused before it is posted, with a later retry; `chance` is between 0 and 1."""
    if is_throttled:
        return chance < _REFUSED_WHERE_THROTTLED
    return len(end.mailed) > _MOST_WRITERS and chance < _REFUSED


def boxes_to_look_into(end: ChainEnd, own: Mail, looks: int) -> list[int]:
    """Return the box of the tail, and the one before if reading it is cheap or needed."""
    if end.last_start is None:
        return [end.offset]
    if own.box != end.last_start and len(end.mailed) > _FEW_WRITERS and looks < _LEADS:
        return [end.offset]
    return [end.offset, end.last_start]


def waits_for_senders(view: BoxView, *, is_stored: bool) -> bool:
    """Whether a leader waits for the senders of the last batch. If bodies go to S3 first, senders return
    later, so waiting pays only when many writers compete."""
    return not is_stored or view.writers > SMALL_GROUP


def is_complete(end: ChainEnd, mails: Sequence[Mail]) -> bool:
    """Whether all senders in the last batch have posted again."""
    before = {mailed.mail_id[-SENDER_DIGITS:] for mailed in end.mailed}
    return before <= {mail.id[-SENDER_DIGITS:] for mail in mails}


def rank(own: Mail, end: ChainEnd, mails: Sequence[Mail], view: BoxView) -> int:
    """Return the number of writers that go before this one. All `mails` are open, and all expected mail is
    there.

    At the first look the newest post commits, because its writer saw all others; if the group has doubled,
    the oldest does. At later looks the newest post of those that may lead commits.
    """
    place = (own.posted_ms, own.id)
    if view.looks:
        later = [mail for mail in mails if (mail.posted_ms, mail.id) > place]
        before = sum(may_lead(mail.id, view) for mail in later)
    elif len(mails) > 2 * len(end.mailed):
        before = sum((mail.posted_ms, mail.id) < place for mail in mails)
    else:
        before = 0
    return min(before, _HIGHEST_RANK)


def pause_seconds(end: ChainEnd, found: Sequence[Mail], view: BoxView) -> float:
    """Return the pause before the next look. The first look should come right after the batch, so writers
    that posted early wait longer, by the spread of the posts before."""
    s3_seconds = _S3_SECONDS if view.size > COMBINED_INLINE_BYTES else 0.0
    if view.looks:
        each = _PAUSE_SECONDS_EACH * (view.writers - _FEW_WRITERS)
        return max(_PAUSE_SECONDS, each) + s3_seconds / 10
    if not found:
        return _OTHERS_SECONDS + s3_seconds + _PAUSE_SECONDS_EACH * view.writers
    before = [mail.posted_ms for mail in found if mail.box != end.offset]
    posted = len(found) - len(before)
    spread_ms = min(max(before) - min(before), _WIDEST_SPREAD_MS) if before else _USUAL_SPREAD_MS
    early = spread_ms / 1000 * max(0.0, 1 - posted / view.writers) if view.writers else 0.0
    receipt = _RECEIPT_SECONDS if len(end.mailed) > RECEIPTS_FROM else 0.0
    return _FIRST_PAUSE_SECONDS + early + receipt

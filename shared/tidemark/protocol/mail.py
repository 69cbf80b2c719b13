"""Combining: when an append may be committed by another writer than its own.

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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidemark.protocol.append import Append
from tidemark.protocol.producer import ProducerState

#: Four bytes of the append, and four of the sender, which is a process. A box is read in the order of ids, so
#: the append's come first: no sender is before the others in each box.
MAIL_ID_BYTES: Final = 8
SENDER_DIGITS: Final = 8
#: Of larger appends the mail is a pointer to S3: a box is read whole.
MAIL_BYTES: Final = 2 * 1024
#: The limits of one batch. With the state that it carries, it fits an item.
MAX_APPENDS: Final = 160
MAX_BYTES: Final = 1024 * 1024
#: With the bytes that are in S3: what a read may have to answer at once.
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
_NEARLY_ALL_BYTES: Final = MAX_BATCH_BYTES - 128 * 1024
#: Larger batches race as a pointer of one write unit, behind their bytes in S3: a lost put is billed by the
#: size of its item, and S3 by the object.
COMBINED_INLINE_BYTES: Final = 12 * 1024
#: A writer does not wait longer for its mail, so others leave it out then: it only keeps the appends of dead
#: writers out of the log. All go by storage's clock, to two seconds (`aws/clock.py`).
MAIL_LIVES_MS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Mail:
    """An append that other writers may commit. `id` is 16 hexadecimal digits, `box` the offset that it was
    posted for.

    `looked_up` is what its writer has found of a producer that the tail at the box does not carry: its state,
    or None if it has none. It holds for the batch at the box's offset, which is written only if no batch came
    between; for the one behind it, it may be too old.
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
        """Whether the last batch has so many appends, or bytes, that it may have left some out."""
        size = self.offset - (self.last_start or 0)
        return len(self.mailed) >= MAX_APPENDS or (bool(self.mailed) and size > _NEARLY_ALL_BYTES)

    def size_of(self, mail_id: str) -> int:
        """How many bytes the last batch, which names this mail, has of it."""
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
    """One's own mail, and the oldest of the others' that fit one batch; in the order of posting."""
    taken: list[Mail] = []
    size = mailed_size = 0
    for mail in sorted(mails, key=lambda mail: mail.id != own_id):
        size += mail.append.messages.size
        mailed_size += len(mail.append.messages.data)
        if len(taken) == MAX_APPENDS or size > MAX_BATCH_BYTES or mailed_size > MAX_BYTES:
            break
        taken.append(mail)
    return sorted(taken, key=lambda mail: (mail.posted_ms, mail.id))

"""Combining: decides which writer commits the mail of all.

Any writer may commit at any time, so no append depends on anything in this module. It saves writes and reads:
one of the waiting writers should commit, after waiting for the writers of the last batch. That keeps the
writers in step: all writers of one batch are in the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.protocol.mail import COMBINED_INLINE_BYTES, SENDER_DIGITS, ChainEnd, Mail

#: In a larger crowd only a few look into the box, because every look reads it whole.
SMALL_CROWD: Final = 32
#: In a larger crowd only writers with mail in the previous box look into it.
_SMALL_CROWD: Final = 16
_LEADS: Final = 8
_LEADS_OF_MUCH: Final = 2
#: Of each mail, beside its bytes.
_MAIL_OVERHEAD_BYTES: Final = 100
#: How long a lead waits at most for senders that were in the last batch; the lot of its mail decides.
_LINGER_SECONDS: Final = (0.004, 0.012)
#: A batch of more appends says that more writers are there than one stream takes. Then a share of the appends
#: is refused before anything is written, and of those of a writer that was throttled a larger one.
_MOST_WRITERS: Final = 128
_REFUSED: Final = 0.25
_REFUSED_WHERE_THROTTLED: Final = 0.75
#: In crowds of this size or more, the others read a receipt, not the batch.
RECEIPTS_FROM: Final = 16
_HIGHEST_RANK: Final = 3

#: Before the first look: posts are dated in whole milliseconds, so the time of the last is not known exactly.
_FIRST_PAUSE_SECONDS: Final = 0.0012
#: Between two looks.
_PAUSE_SECONDS: Final = 0.0008
_PAUSE_SECONDS_EACH: Final = 0.0001
#: The duration of another writer's commit: a look, a batch and a receipt.
_OTHERS_SECONDS: Final = 0.011
_RECEIPT_SECONDS: Final = 0.005
#: The same of S3, where the batch's bytes go there.
_S3_SECONDS: Final = 0.030
_WIDEST_SPREAD_MS: Final = 6
_USUAL_SPREAD_MS: Final = 3


@dataclass(frozen=True, slots=True)
class Crowding:
    """What a writer that waits knows of the others: how many `writers` it expects, how many bytes (`size`)
    wait in the box, and how often it has looked since the last batch."""

    writers: int
    size: int
    looks: int


def lot(mail_id: str) -> float:
    """Between 0 and 1, new with each append."""
    digits = mail_id[:-SENDER_DIGITS]
    return int(digits, 16) / float(16 ** len(digits))


def may_lead(mail_id: str, crowd: Crowding) -> bool:
    """Many may after posting, few afterwards, and more and more, the longer nothing happens. Every look reads
    the box whole, so only two look into a large one."""
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
    if own.box != end.last_start and len(end.mailed) > _SMALL_CROWD and looks < _LEADS:
        return [end.offset]
    return [end.offset, end.last_start]


def waits_for_senders(crowd: Crowding, *, is_stored: bool) -> bool:
    """Whether a lead waits for senders that were in the last batch. Where bodies go to S3 first they are not
    back so soon, and the wait is worth its time in a large crowd alone."""
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
        each = _PAUSE_SECONDS_EACH * (crowd.writers - _SMALL_CROWD)
        return max(_PAUSE_SECONDS, each) + s3_seconds / 10
    if not found:
        return _OTHERS_SECONDS + s3_seconds + _PAUSE_SECONDS_EACH * crowd.writers
    before = [mail.posted_ms for mail in found if mail.box != end.offset]
    posted = len(found) - len(before)
    spread_ms = min(max(before) - min(before), _WIDEST_SPREAD_MS) if before else _USUAL_SPREAD_MS
    early = spread_ms / 1000 * max(0.0, 1 - posted / crowd.writers) if crowd.writers else 0.0
    receipt = _RECEIPT_SECONDS if len(end.mailed) > RECEIPTS_FROM else 0.0
    return _FIRST_PAUSE_SECONDS + early + receipt

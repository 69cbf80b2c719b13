"""Any writer may commit another's append: once, and not after its writer was told otherwise."""

import random
from dataclasses import replace

import pytest

from tidemark.log import combining as rules
from tidemark.log.combining import MAIL_LIVES_MS, ChainEnd, Mail, Mailed, fits_mail, fitting, open_mail
from tidemark.protocol.append import Append, Kind, Outcome, plan_appends
from tidemark.protocol.errors import AppendAfterClose, Malformed, SequenceRegression, StaleEpoch
from tidemark.protocol.messages import Messages
from tidemark.protocol.producer import Claim
from tidemark.protocol.tail import Tail

NOW_MS = 1_800_000_000_000
ONE_BYTE = Messages(b"x", (1,))


def mail(mail_id: str = "aaaaaaaa00000001", box: int = 0, *, posted_ms: int = NOW_MS, size: int = 1) -> Mail:
    return Mail(mail_id, box, posted_ms, Append(Messages(b"x" * size, (size,))))


# --- which batches may commit it ------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "is_open"),
    [
        (ChainEnd(10, 5, ()), True),
        (ChainEnd(12, 10, ()), True),
        (ChainEnd(14, 12, ()), False),
        (ChainEnd(5, 0, ()), False),
        # The last batch has committed it.
        (ChainEnd(12, 10, (Mailed("bbbbbbbb00000001", 11), Mailed("aaaaaaaa00000001", 12))), False),
        # Where the last batch is not known, only the tail's own box is open.
        (ChainEnd(10, None, ()), True),
        (ChainEnd(12, None, ()), False),
    ],
)
def test_mail_is_committed_by_the_batch_at_its_box_or_by_the_next_one(end: ChainEnd, is_open: bool) -> None:
    own = mail(box=10)
    assert end.is_open(own.box, own.id) == is_open
    assert end.holds(own.id) == (end.mailed[-1] if end.mailed else None)


def test_in_any_chain_mail_is_committed_once_at_most() -> None:
    for seed in range(200):
        play_chain(seed)


def play_chain(seed: int) -> None:
    """Random chains whose writers commit any part of what is open to them, with copies of mail in any box."""
    chance = random.Random(seed)
    end, committed = ChainEnd(0, None, ()), list[str]()
    boxes: list[Mail] = []
    for number in range(40):
        if chance.random() < 0.8:
            boxes.append(mail(f"{number:016x}", chance.choice((end.offset, end.last_start or 0))))
        taken = [found for found in boxes if end.is_open(found.box, found.id) and chance.random() < 0.5]
        committed += [found.id for found in taken]
        offset = end.offset + 1 + len(taken)
        end = ChainEnd(offset, end.offset, tuple(Mailed(found.id, offset) for found in taken))
    assert len(committed) == len(set(committed)) > 5


# --- what a state accepts is accepted later, or refused for good ----------------------


def some_append(chance: random.Random) -> Append:
    claim = Claim(chance.choice("pq"), chance.randrange(3), chance.randrange(4))
    return Append(
        ONE_BYTE,
        close=chance.random() < 0.02,
        stream_seq=chance.choice((None, None, "1", "2", "3")),
        claim=claim if chance.random() < 0.8 else None,
    )


def is_refused(tail: Tail, append: Append) -> bool:
    """Raises AssertionError for a refusal that may pass."""
    answer = plan_appends(tail, [append], {}).results[0]
    if isinstance(answer, Outcome):
        return answer.kind is not Kind.APPENDED
    assert isinstance(answer, StaleEpoch | SequenceRegression | AppendAfterClose), repr(answer)
    return True


def test_what_a_state_accepts_is_accepted_later_or_refused_for_good() -> None:
    for seed in range(300):
        play_appends(seed)


def play_appends(seed: int) -> None:
    """So a writer whose mail a later state refuses may say so, although the mail is still there."""
    chance, tail = random.Random(seed), Tail()
    accepted: list[tuple[Append, bool]] = []
    for _ in range(60):
        append = some_append(chance)
        plan = plan_appends(tail, [append], {})
        if not plan.writes:
            continue
        accepted.append((append, False))
        if chance.random() < 0.6:
            tail = plan.after
        for index, (earlier, was_refused) in enumerate(accepted):
            refused = is_refused(tail, earlier)
            assert refused or not was_refused, f"{earlier} was refused, and is accepted again"
            accepted[index] = (earlier, refused)


# --- what is mailed, and how much a batch takes ----------------------------------------


def test_only_appends_that_do_not_depend_on_being_next_are_mailed() -> None:
    plain = Append(ONE_BYTE)
    assert fits_mail(plain)
    assert fits_mail(replace(plain, stream_seq="7", claim=Claim("p", 0, 0)))
    assert not fits_mail(replace(plain, close=True))
    assert not fits_mail(replace(plain, messages=Messages(b"", ())))
    assert not fits_mail(replace(plain, fault=Malformed("no JSON")))
    size = rules.MAIL_BYTES + 1
    assert fits_mail(replace(plain, messages=Messages(b"x" * size, (size,)))), "as a pointer"


def test_old_mail_of_others_is_left_out_and_one_s_own_is_not() -> None:
    end, later_ms = ChainEnd(0, None, ()), NOW_MS + MAIL_LIVES_MS
    own, other = mail("aaaaaaaa00000001"), mail("bbbbbbbb00000001")
    assert open_mail(end, own, [own, other], NOW_MS) == [own, other]
    assert open_mail(end, own, [own, other], later_ms) == [own]


def test_a_batch_takes_one_s_own_mail_and_the_oldest_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    mails = [mail(f"{number:016x}", posted_ms=NOW_MS + number) for number in range(6)]
    monkeypatch.setattr(rules, "MAX_APPENDS", 3)
    assert fitting(mails[5].id, mails) == [mails[0], mails[1], mails[5]]
    monkeypatch.setattr(rules, "MAX_BATCH_BYTES", 2)
    assert fitting(mails[5].id, mails) == [mails[0], mails[5]]

"""The judge finds what it is there to find: a sound recording passes, and each way to spoil it is caught."""

import zlib
from collections.abc import Callable

import pytest

from tests.chaos import judge
from tests.chaos.followed import splice_in
from tests.chaos.recording import Append, Outcome, Page, Recordings, StreamHistory, Violation, render_messages


def stored(append: Append) -> bytes:
    return b"".join(message + b"," for message in render_messages(append))


def page(log: bytes, start: int, end: int, known_end: int = 0, *, up_to_date: bool = False) -> Page:
    return Page("reader", start, end, zlib.crc32(log[start:end]), end - start, known_end, up_to_date)


class Recording(StreamHistory):
    """Its log is there."""

    @property
    def data(self) -> bytes:
        assert self.log is not None
        return self.log

    def replace(self, old: bytes, new: bytes = b"") -> None:
        assert old in self.data
        self.log = self.data.replace(old, new)

    def append(self, append: Append, answered: float | None = None) -> None:
        self.appends.append(append)
        self.log = (self.log or b"") + stored(append)
        if answered is not None:
            self.acknowledge(append, answered, self.base + len(self.log), exact=True)

    def tell(self, start: int, end: int, given: bytes) -> None:
        self.pages.append(Page("reader", start, end, zlib.crc32(given), len(given)))


def sound() -> Recording:
    """Two writers in turn: one append of three messages, one that was never answered and is there, one that
    was never answered and is not, one that was refused; and a reader that was given it all."""
    made = Recording("stream", strict={"p"})
    made.append(Append("p", 0, 1, sent=1.0), 2.0)
    made.append(Append("w", 0, 3, sent=2.5), 3.0)
    made.append(Append("p", 1, 1, sent=3.5), 4.0)
    made.append(Append("w", 1, 1, sent=4.5))
    made.appends += [Append("w", 2, 1, sent=4.6), Append("r", 0, 1, sent=4.7, outcome=Outcome.REFUSED)]
    made.append(Append("p", 2, 1, sent=5.0), 6.0)
    log, middle = made.data, len(stored(made.appends[0]))
    made.pages += [page(log, 0, middle), page(log, middle, len(log), len(log), up_to_date=True)]
    return made


def exchange_two_of_one_writer(made: Recording) -> None:
    made.replace(b'"p:1:0"', b"?")
    made.replace(b'"p:2:0"', b'"p:1:0"')
    made.replace(b"?", b'"p:2:0"')


def let_an_append_that_was_given_up_land_late(made: Recording) -> None:
    """A strict writer's is not to come behind the ones that followed it."""
    made.append(Append("p", -1, 1, sent=0.5))


def put_an_append_before_one_that_was_acknowledged_before_it_was_sent(made: Recording) -> None:
    late = Append("v", 0, 1, sent=9.0)
    made.appends.append(late)
    made.log = stored(late) + made.data


def answer_with_an_offset_before_its_end(made: Recording) -> None:
    made.appends[2].exact = False
    made.appends[2].end -= 1


def tear_an_append_apart(made: Recording) -> None:
    made.replace(b'"w:0:2",')
    made.replace(b'"p:1:0",', b'"p:1:0","w:0:2",')


def add(data: bytes) -> Callable[[Recording], None]:
    return lambda made: setattr(made, "log", made.data + data)


def tell_a_reader_of_a_tail_that_was_long_past(made: Recording) -> None:
    made.pages.append(page(made.data, 0, 8, len(made.data), up_to_date=True))


SPOILED: dict[str, tuple[Callable[[Recording], object], str]] = {
    "an append is lost": (lambda made: made.replace(b'"p:1:0",'), judge.LOST),
    "a message of an append is lost": (lambda made: made.replace(b'"w:0:1",'), judge.LOST),
    "an append is there twice": (add(b'"p:0:0",'), judge.DOUBLED),
    "an append that was never answered is there twice": (add(b'"w:1:0",'), judge.DOUBLED),
    "two of one writer are exchanged": (exchange_two_of_one_writer, judge.MISORDERED),
    "what a strict writer gave up lands late": (let_an_append_that_was_given_up_land_late, judge.MISORDERED),
    "an append is before one that was acknowledged before it was sent": (
        put_an_append_before_one_that_was_acknowledged_before_it_was_sent,
        judge.MISORDERED,
    ),
    "an answer with another offset": (lambda made: setattr(made.appends[2], "end", 1000), judge.WRONG_OFFSET),
    "a duplicate's answer before its end": (answer_with_an_offset_before_its_end, judge.WRONG_OFFSET),
    "what was refused is there": (add(b'"r:0:0",'), judge.REFUSED_PRESENT),
    "a message of an earlier life": (add(b'"earlier.0:0:0",'), judge.FOREIGN),
    "a message more than an append has": (add(b'"p:2:1",'), judge.FOREIGN),
    "what is no message": (add(b'"half a mess,'), judge.FOREIGN),
    "an append is torn apart": (tear_an_append_apart, judge.TORN),
    "a reader is given other bytes": (lambda made: made.tell(0, 8, b'"q:0:0",'), judge.TAIL_DIFFERS),
    "a reader is given more than there is": (
        lambda made: made.tell(len(made.data), len(made.data) + 8, b'"x:0:0",'),
        judge.TAIL_DIFFERS,
    ),
    "a page has a gap": (lambda made: made.tell(0, len(made.data), b""), judge.GAP),
    "a reader is told of a tail that was long past": (
        tell_a_reader_of_a_tail_that_was_long_past,
        judge.STALE,
    ),
}


def kinds(history: StreamHistory) -> set[str]:
    return {violation.kind for violation in judge.judge_stream(history)}


def test_a_sound_recording_passes() -> None:
    assert kinds(sound()) == set()


@pytest.mark.parametrize(("spoil", "kind"), SPOILED.values(), ids=SPOILED)
def test_a_spoiled_recording_is_caught(spoil: Callable[[Recording], object], kind: str) -> None:
    made = sound()
    spoil(made)
    assert kind in kinds(made)


def test_the_verdict_is_of_all_streams_and_of_what_was_wrong_at_once() -> None:
    at_once, made = Violation("a deleted thing is back", "stream", ""), sound()
    assert judge.judge(Recordings([made])) == []
    made.replace(b'"p:1:0",')
    assert {each.kind for each in judge.judge(Recordings([sound(), made], [at_once]))} >= {
        judge.LOST,
        at_once.kind,
    }


@pytest.mark.parametrize("has_log", [True, False])
def test_each_acknowledged_append_of_a_stream_that_cannot_be_read_is_lost(has_log: bool) -> None:
    """Also where an earlier reading has left a log behind."""
    made = sound()
    made.unread, made.log = True, made.log if has_log else None
    assert [violation.kind for violation in judge.judge_stream(made)] == [judge.LOST] * 4


def test_a_plain_append_that_was_never_answered_may_come_late() -> None:
    """Nobody promised anything of it but once or not at all."""
    made = Recording("stream")
    made.append(Append("w", 1, 1, sent=2.0), 3.0)
    made.append(Append("w", 0, 1, sent=1.0))
    assert kinds(made) == set()


def test_offsets_count_from_where_the_history_begins() -> None:
    made = Recording("stream", base=100)
    made.append(Append("w", 0, 1, sent=1.0), 2.0)
    assert kinds(made) == set()
    made.base = 99
    assert kinds(made) == {judge.WRONG_OFFSET}


def test_a_fork_that_does_not_begin_like_its_source_is_caught() -> None:
    made = Recording("fork", inherited=b'"s:0:0","s:1:0",', log=b'"s:0:0","s:1:0",')
    made.append(Append("f", 0, 1, sent=1.0), 2.0)
    assert kinds(made) == set()
    made.replace(b"s:1", b"s:9")
    assert kinds(made) == {judge.FOREIGN}


@pytest.mark.parametrize(
    ("seen", "is_sound"),
    [
        ("", True),
        ("a:0:0 a:0:1 a:1:0", True),
        ("a:1:0", False),
        ("a:0:0 b:1:0", False),
        ("a:0:0 a:2:0", False),
        ("a:0:0 a:0:0", False),
    ],
)
def test_a_reader_that_is_given_two_streams_as_one_is_told(seen: str, is_sound: bool) -> None:
    assert (splice_in(seen.split()) is None) == is_sound

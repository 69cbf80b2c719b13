"""The judge finds what it is there to find: a sound recording passes, and each way to spoil it is caught."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos import scene as scene_module
from tests.chaos.campaign import Campaign, Wish
from tests.chaos.client import Answer, NoAnswer, TimedOut
from tests.chaos.disk import Disk
from tests.chaos.judge import (
    DOUBLED,
    FOREIGN,
    GAP,
    LOST,
    MISORDERED,
    REFUSED_PRESENT,
    STALE,
    TAIL_DIFFERS,
    TORN,
    WRONG_OFFSET,
    judge,
    judge_stream,
)
from tests.chaos.recording import (
    Append,
    Comparison,
    Outcome,
    Page,
    Recordings,
    Step,
    StreamHistory,
    render_messages,
)
from tests.chaos.scene import (
    LAST_TRIES_SECONDS,
    NO_PROGRESS,
    UNAVAILABLE_FOR_GOOD,
    VANISHED,
    Insisting,
    Scene,
)
from tests.chaos.writers import Producer, SequencedWriter


def stored(append: Append) -> bytes:
    return b"".join(message + b"," for message in render_messages(append))


def page(log: bytes, start: int, end: int, known_end: int = 0, *, up_to_date: bool = False) -> Page:
    return Page("reader", start, end, zlib.crc32(log[start:end]), end - start, known_end, up_to_date)


def acknowledged(history: StreamHistory, append: Append, answered: float) -> None:
    history.appends.append(append)
    history.log = (history.log or b"") + stored(append)
    history.acknowledge(append, answered, len(history.log), exact=True)


def sound() -> StreamHistory:
    """Two writers in turn: one append of three messages, one that was never answered and is there, one that
    was never answered and is not, one that was refused; and a reader that was given it all."""
    history = StreamHistory("stream", strict={"p"})
    acknowledged(history, Append("p", 0, 1, sent=1.0), 2.0)
    acknowledged(history, Append("w", 0, 3, sent=2.5), 3.0)
    acknowledged(history, Append("p", 1, 1, sent=3.5), 4.0)
    landed = Append("w", 1, 1, sent=4.5)
    history.appends += [
        landed,
        Append("w", 2, 1, sent=4.6),
        Append("r", 0, 1, sent=4.7, outcome=Outcome.REFUSED),
    ]
    history.log = (history.log or b"") + stored(landed)
    acknowledged(history, Append("p", 2, 1, sent=5.0), 6.0)
    log = history.log
    middle = len(stored(history.appends[0]))
    history.pages += [page(log, 0, middle), page(log, middle, len(log), len(log), up_to_date=True)]
    return history


def log_of(history: StreamHistory) -> bytes:
    assert history.log is not None
    return history.log


def lose_an_append(history: StreamHistory) -> None:
    history.log = log_of(history).replace(stored(history.appends[2]), b"")


def lose_a_message_of_an_append(history: StreamHistory) -> None:
    history.log = log_of(history).replace(b'"w:0:1",', b"")


def double_an_append(history: StreamHistory) -> None:
    history.log = log_of(history) + stored(history.appends[0])


def double_an_append_that_was_never_answered(history: StreamHistory) -> None:
    history.log = log_of(history) + stored(history.appends[3])


def exchange_two_of_one_writer(history: StreamHistory) -> None:
    first, second = b'"p:1:0"', b'"p:2:0"'
    log = log_of(history).replace(first, b"?").replace(second, first)
    history.log = log.replace(b"?", second)


def let_an_old_epoch_land_late(history: StreamHistory) -> None:
    """A strict writer's append that was given up is not to come behind the ones that followed it."""
    history.appends.insert(0, Append("p", -1, 1, sent=0.5))
    history.log = log_of(history) + b'"p:-1:0",'


def put_an_append_before_one_that_was_acknowledged_before_it_was_sent(history: StreamHistory) -> None:
    late = Append("v", 0, 1, sent=9.0)
    history.appends.append(late)
    history.log = stored(late) + log_of(history)


def answer_with_another_offset(history: StreamHistory) -> None:
    history.appends[2].end += 1


def answer_a_duplicate_with_an_offset_before_its_end(history: StreamHistory) -> None:
    history.appends[2].exact = False
    history.appends[2].end -= 1


def let_a_refused_append_in(history: StreamHistory) -> None:
    history.log = log_of(history) + stored(history.appends[5])


def bring_back_a_message_of_an_earlier_life(history: StreamHistory) -> None:
    history.log = b'"earlier.0:0:0",' + log_of(history)


def let_in_what_is_no_message(history: StreamHistory) -> None:
    history.log = log_of(history) + b'"half a mess,'


def tear_an_append_apart(history: StreamHistory) -> None:
    log = log_of(history).replace(b'"w:0:2",', b"")
    history.log = log.replace(b'"p:1:0",', b'"p:1:0","w:0:2",')


def show_a_reader_what_is_not_in_the_log(history: StreamHistory) -> None:
    history.pages.append(page(log_of(history).replace(b"p", b"q"), 0, len(log_of(history))))


def show_a_reader_more_than_there_is(history: StreamHistory) -> None:
    end = len(log_of(history))
    history.pages.append(Page("reader", end, end + 8, zlib.crc32(b'"x:0:0",'), 8))


def leave_a_gap_in_a_page(history: StreamHistory) -> None:
    end = len(log_of(history))
    history.pages.append(Page("reader", 0, end, zlib.crc32(b""), 0))


def tell_a_reader_of_a_tail_that_was_long_past(history: StreamHistory) -> None:
    log = log_of(history)
    history.pages.append(page(log, 0, 8, len(log), up_to_date=True))


def test_a_sound_recording_passes() -> None:
    assert judge_stream(sound()) == []


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lose_an_append, LOST),
        (lose_a_message_of_an_append, LOST),
        (double_an_append, DOUBLED),
        (double_an_append_that_was_never_answered, DOUBLED),
        (exchange_two_of_one_writer, MISORDERED),
        (let_an_old_epoch_land_late, MISORDERED),
        (put_an_append_before_one_that_was_acknowledged_before_it_was_sent, MISORDERED),
        (answer_with_another_offset, WRONG_OFFSET),
        (answer_a_duplicate_with_an_offset_before_its_end, WRONG_OFFSET),
        (let_a_refused_append_in, REFUSED_PRESENT),
        (bring_back_a_message_of_an_earlier_life, FOREIGN),
        (let_in_what_is_no_message, FOREIGN),
        (tear_an_append_apart, TORN),
        (show_a_reader_what_is_not_in_the_log, TAIL_DIFFERS),
        (show_a_reader_more_than_there_is, TAIL_DIFFERS),
        (leave_a_gap_in_a_page, GAP),
        (tell_a_reader_of_a_tail_that_was_long_past, STALE),
    ],
)
def test_a_spoiled_recording_is_caught(spoil: Callable[[StreamHistory], None], kind: str) -> None:
    history = sound()
    spoil(history)
    assert kind in {violation.kind for violation in judge_stream(history)}


def test_each_acknowledged_append_of_a_stream_that_cannot_be_read_is_lost() -> None:
    """Also where an earlier reading has left a log behind."""
    history = sound()
    history.unread = True
    lost = [violation.kind for violation in judge_stream(history)]
    assert lost == [LOST] * 4
    history.log = None
    assert [violation.kind for violation in judge_stream(history)] == lost


class Replies:
    """In place of a client: each of these in turn, and the last one for ever."""

    def __init__(self, *replies: Answer | NoAnswer) -> None:
        self.replies = list(replies)

    async def request(self, *_: object) -> Answer:
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, NoAnswer):
            raise reply
        return reply


FIRST = Answer(200, {"stream-next-offset": "8"}, b'["p:0:0"]')
LAST = Answer(200, {"stream-next-offset": "16", "stream-up-to-date": "true"}, b'["p:1:0"]')


@pytest.mark.parametrize(
    ("replies", "wrong"),
    [
        ([FIRST, TimedOut(), NoAnswer(), LAST], None),
        ([FIRST, NoAnswer()], UNAVAILABLE_FOR_GOOD),
        ([FIRST, TimedOut()], UNAVAILABLE_FOR_GOOD),
        ([FIRST, Answer(503, {}, b"")], UNAVAILABLE_FOR_GOOD),
        ([FIRST, Answer(200, {"stream-next-offset": "8"}, b"[]")], NO_PROGRESS),
        ([FIRST, Answer(404, {}, b"")], VANISHED),
    ],
)
def test_a_reading_comes_to_an_end_and_says_why(replies: list[Answer | NoAnswer], wrong: str | None) -> None:
    scene = Scene(0, 0, 1)
    history = scene.recordings.history("stream")
    reader = Insisting(scene, "reader")
    reader.client = Replies(*replies)  # type: ignore[assignment]
    reader.unavailable_seconds = 60 if wrong is None else 0.2
    log = asyncio.run(reader.read_all("stream", history))
    assert (log, history.unread) == ((None, True) if wrong else (b'"p:0:0","p:1:0",', False))
    assert [step.wrong for step in scene.recordings.steps] == [wrong] * (wrong is not None)


@pytest.mark.parametrize("reply", [TimedOut(), NoAnswer(), Answer(503, {}, b""), Answer(429, {}, b"")])
@pytest.mark.parametrize("kind", [Producer, SequencedWriter])
def test_a_writer_that_is_not_answered_after_the_last_fault_ends_and_says_so(
    kind: type[Producer | SequencedWriter], reply: Answer | NoAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would repeat an append for ever, and the campaign would wait for it."""
    monkeypatch.setattr(scene_module, "PEACE_SECONDS", -1)
    scene = Scene(0, 0, 1)
    history = scene.recordings.history("stream")
    writer = kind(scene, "stream", history, "writer", 0)
    writer.client = Replies(reply)  # type: ignore[assignment]
    scene.make_peace()
    append = Append("writer", 0, 1, sent=time.monotonic() - LAST_TRIES_SECONDS)
    asyncio.run(asyncio.wait_for(writer.deliver(append, b""), 60))
    assert UNAVAILABLE_FOR_GOOD in {step.wrong for step in scene.recordings.steps}


def test_the_tries_at_many_streams_that_cannot_be_read_do_not_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have one limit: each is asked, and told, where the first one alone used up the time."""
    monkeypatch.setattr(scene_module, "PEACE_SECONDS", 0.1)
    monkeypatch.setattr(scene_module, "LAST_TRIES_SECONDS", 0)
    campaign = Campaign(Wish(1, "asgi", 1), tmp_path, Disk(tmp_path, "nothing"), lambda _: None)
    campaign.scene = scene = Scene(0, 0, 1)
    monkeypatch.setattr(scene_module, "Client", lambda _: Replies(Answer(503, {}, b"")))
    for number in range(100):
        scene.keep(f"stream-{number}", scene.recordings.history(f"stream-{number}"))
    asyncio.run(asyncio.wait_for(campaign._read_all(), 60))
    lost = {step.stream.partition("?")[0] for step in scene.recordings.steps}
    assert lost == {path for path, _ in scene.kept}


def test_a_phase_that_does_not_end_is_a_violation(tmp_path: Path) -> None:
    """Also one that does not even end when it is cancelled."""
    campaign = Campaign(Wish(1, "asgi", 1), tmp_path, Disk(tmp_path, "nothing"), lambda _: None)

    async def deaf() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    asyncio.run(campaign._limited("read everything", 0.01, deaf()))
    assert [found.kind for found in campaign._failures] == ["a phase does not end"]


def test_a_plain_append_that_was_never_answered_may_come_late() -> None:
    """Nobody promised anything of it but once or not at all."""
    history = StreamHistory("stream")
    unanswered = Append("w", 0, 1, sent=1.0)
    history.appends.append(unanswered)
    acknowledged(history, Append("w", 1, 1, sent=2.0), 3.0)
    history.log = log_of(history) + stored(unanswered)
    assert judge_stream(history) == []


def test_a_history_may_begin_at_the_offset_of_a_snapshot() -> None:
    """Its offsets count from there."""
    history = StreamHistory("stream", base=100)
    acknowledged(history, Append("w", 0, 1, sent=1.0), 2.0)
    assert {violation.kind for violation in judge_stream(history)} == {WRONG_OFFSET}
    history.appends[0].end += 100
    assert judge_stream(history) == []


def test_a_fork_that_does_not_begin_like_its_source_is_caught() -> None:
    history = StreamHistory("fork", inherited=b'"s:0:0","s:1:0",')
    fork = Append("f", 0, 1, sent=1.0, answered=2.0, outcome=Outcome.ACKNOWLEDGED, end=24)
    history.appends.append(fork)
    history.log = history.inherited + stored(fork)
    assert judge_stream(history) == []
    history.log = b'"s:0:0","s:9:0",' + stored(fork)
    assert {violation.kind for violation in judge_stream(history)} == {FOREIGN}


def test_an_answer_that_may_not_come_is_caught() -> None:
    step = Step(1.0, "stream", "read what is deleted", 404, frozenset({404}), "resurrected")
    assert judge(Recordings(steps=[step])) == []
    found = judge(Recordings(steps=[replace(step, status=200)]))
    assert [violation.kind for violation in found] == ["resurrected"]


def test_a_snapshot_that_is_not_what_was_published_is_caught() -> None:
    same = Comparison(1.0, "stream", "snapshot", (b"published",), b"published", "wrong snapshot")
    assert judge(Recordings(comparisons=[same])) == []
    found = judge(Recordings(comparisons=[replace(same, found=b"")]))
    assert [violation.kind for violation in found] == ["wrong snapshot"]

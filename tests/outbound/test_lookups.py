"""Questions without a deadline: who shares an answer, and who is refused."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from tests.waiting import PATIENCE_SECONDS, until
from tidemark.outbound.lookups import Lookups, TooManyLookups


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_callers_with_the_same_question_share_one_answer(go_on: threading.Event) -> None:
    asked = list[str]()

    def look(name: str) -> str:
        asked.append(name)
        go_on.wait(PATIENCE_SECONDS)
        return name.upper()

    lookups = Lookups()
    first = lookups.ask(look, "a.test")
    assert (lookups.ask(look, "a.test") is first, first.cancel()) == (True, False)
    go_on.set()
    assert first.result(PATIENCE_SECONDS) == "A.TEST"
    assert lookups.ask(look, "a.test").result(PATIENCE_SECONDS) == "A.TEST"
    assert asked == ["a.test"] * 2


def test_slow_names_of_one_domain_leave_room_and_no_name_waits_in_a_line(go_on: threading.Event) -> None:
    lookups, wait = Lookups(), lambda _name: go_on.wait(PATIENCE_SECONDS)
    answers = [lookups.ask(wait, f"{number}.one.test") for number in range(16)]
    with pytest.raises(TooManyLookups, match=r"16 of .*one\.test"):
        lookups.ask(wait, "17.one.test")
    answers += [lookups.ask(wait, f"{number}.test") for number in range(48)]
    with pytest.raises(TooManyLookups):
        lookups.ask(wait, "another.test")
    go_on.set()
    assert all(answer.result(PATIENCE_SECONDS) for answer in answers)
    until(lambda: not lookups._asked)
    lookups.ask(wait, "another.test").result(PATIENCE_SECONDS)


def test_a_failure_is_the_answer_and_leaves_no_garbage() -> None:
    def fail(_name: str) -> None:
        raise OSError("no address")

    gc.collect()
    with pytest.raises(OSError, match="no address"):
        Lookups().ask(fail, "a.test").result(PATIENCE_SECONDS)
    assert not [
        each for each in gc.get_objects() if isinstance(each, OSError) and each.args == ("no address",)
    ]

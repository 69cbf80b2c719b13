"""Storage's date bounds how far this machine's clock is off, however slow a reply is."""

import pytest

from tidemark.aws.clock import BETWEEN_LOOKS_SECONDS, StorageClock

#: `Date` of the second in which storage answers: 1,800,000,000 s since 1970.
NOON = "Fri, 15 Jan 2027 08:00:00 GMT"
SECOND = 1_800_000_000.0


class World:
    """This machine's clock is `ahead` of storage's."""

    def __init__(self, ahead: float) -> None:
        self.storage, self.ahead, self.up = SECOND, ahead, 0.0
        self.clock = StorageClock(lambda: self.storage + self.ahead, lambda: self.up)

    def ask(self, there: float, back: float, headers: dict[str, str] | None = None) -> None:
        """A request and its reply, which take so long each."""
        self.storage = SECOND + 0.4 - there
        sent = self.clock.sent()
        assert sent is not None
        self.storage = SECOND + 0.4 + back
        self.clock.received(sent, {"date": NOON} if headers is None else headers)
        self.up += BETWEEN_LOOKS_SECONDS
        self.storage += BETWEEN_LOOKS_SECONDS


@pytest.mark.parametrize("there", [0.01, 4.0])
@pytest.mark.parametrize("back", [0.01, 4.0])
def test_a_slow_reply_is_not_taken_for_a_wrong_clock(there: float, back: float) -> None:
    world = World(0.0)
    world.ask(there, back)
    assert not world.clock.ahead_seconds
    assert world.clock.now_ms() == round(world.storage * 1000)


@pytest.mark.parametrize("ahead", [600.0, -600.0])
def test_a_clock_that_is_off_is_set_right_to_a_second_and_believed_once_it_is_right(ahead: float) -> None:
    world = World(ahead)
    for headers in ({}, {"date": "soon"}):  # Without a date, a reply says nothing.
        world.ask(0.01, 0.01, headers)
        assert not world.clock.ahead_seconds
    world.ask(0.01, 0.01)
    assert world.clock.ahead_seconds
    assert abs(world.clock.now_ms() / 1000 - world.storage) < 1.1
    world.ahead = 0.0
    world.ask(0.01, 0.01)
    assert not world.clock.ahead_seconds


def test_a_date_is_looked_at_every_few_seconds() -> None:
    world = World(0.0)
    world.ask(0.01, 0.01)
    world.up -= BETWEEN_LOOKS_SECONDS / 2
    world.storage -= BETWEEN_LOOKS_SECONDS / 2
    assert world.clock.sent() is None
    world.ahead = 600.0
    assert world.clock.sent() is not None, "a clock that has jumped is looked at with the next reply"

"""Who watches streams on a socket is woken when they move, whatever becomes of messages and connections."""

import json
import math
from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidemark.client import watches
from tidemark.protocol.socket import Frame, parse_frame

A, B = "/v1/stream/a", "/v1/stream/b"
READ, AGAIN, ELSEWHERE = watches.Woken.READ, watches.Woken.AGAIN, watches.Woken.ELSEWHERE


Watching = partial(Frame, data=True)


class Client:
    """Watches whose connection is open, and what its readers were woken with."""

    def __init__(self) -> None:
        self.watches = watches.Watches()
        self.now = 1000.0
        self.woken: list[tuple[str, watches.Woken]] = []

    def wait(self, reader: watches.SocketReader, offset: str, token: str | None = None) -> None:
        def wake(why: watches.Woken) -> None:
            self.woken.append((reader.name, why))

        self.watches.wait(reader, offset, token, self.now, wake)

    def waiting(self, name: str, offset: str, token: str | None = None) -> watches.SocketReader:
        reader = self.watches.join(name)
        self.wait(reader, offset, token)
        return reader

    def hear(self, *messages: Any) -> list[tuple[str, watches.Woken]]:
        """Who is woken by it."""
        self.watches.received(json.dumps(messages if len(messages) > 1 else messages[0]), self.now)
        return self.woken_now()

    def woken_now(self) -> list[tuple[str, watches.Woken]]:
        woken, self.woken = self.woken, []
        return woken

    def frames(self) -> list[Frame]:
        return [parse_frame(frame) for frame in self.watches.frames(self.now)]

    def pass_to(self, now: float) -> list[tuple[str, watches.Woken]]:
        self.now = now
        self.watches.tick(now)
        return self.woken_now()


def connected() -> Client:
    client = Client()
    client.watches.opened(client.now)
    assert client.frames() == [Frame()], "a ping, to learn whether it is answered"
    return client


def tail(name: str, offset: str, **more: Any) -> dict[str, Any]:
    return {"stream": name, "offset": offset, **more}


def watching(token: str | None = None, *, seconds: int = 0) -> tuple[Client, watches.SocketReader]:
    """A reader of A up to 42 has asked for a watch; with `seconds` the server has answered."""
    client = connected()
    reader = client.waiting(A, "42", token)
    client.frames()
    if seconds:
        client.hear(tail(A, "42", seconds=seconds))
    return client, reader


@pytest.mark.parametrize(
    ("messages", "woken"),
    [
        ([tail(A, "42", seconds=60)], []),
        ([tail(A, "57", seconds=60)], [(A, READ)]),
        ([tail(A, "41", seconds=60)], [(A, READ)]),
        ([tail(A, "42")], []),
        ([tail(A, "57")], [(A, READ)]),
        ([tail(A, "41")], []),
        ([tail(A, "42", closed=True)], [(A, READ)]),
        ([tail(B, "57")], []),
        ([tail(A, "42", seconds=60), tail(A, "57"), tail(A, "60")], [(A, READ)]),
        ([{"stream": A, "status": 404, "error": "none"}], [(A, READ)]),
        ([{"stream": A, "status": 410, "error": "gone"}], [(A, READ)]),
        ([{"stream": A, "status": 401, "error": "expired"}], [(A, READ)]),
        ([{"stream": A, "status": 429, "error": "later"}], [(A, ELSEWHERE)]),
        ([{"stream": A, "status": 503, "error": "later"}], [(A, ELSEWHERE)]),
        ([{"stream": B, "status": 404, "error": "none"}], []),
        ([{"status": 400, "error": "too many streams"}], [(A, ELSEWHERE)]),
    ],
)
def test_a_message_wakes_its_reader(messages: list[Any], woken: list[tuple[str, watches.Woken]]) -> None:
    client, _ = watching()
    assert client.hear(*messages) == woken
    assert not client.watches.is_broken


@pytest.mark.parametrize("text", ["{", "7", '{"stream": 7}', "[{}]"])
def test_after_a_message_that_says_nothing_known_the_connection_is_opened_anew(text: str) -> None:
    client, _ = watching()
    client.watches.received(text, client.now)
    assert client.watches.is_broken


def test_what_is_told_while_a_reader_reads_counts_when_it_waits_again() -> None:
    client, reader = watching()
    assert client.hear(tail(A, "50")) == [(A, READ)]
    # The second message overtakes the answer.
    assert client.hear(tail(A, "57")) == client.hear(tail(A, "42", seconds=60)) == []
    client.wait(reader, "50")
    assert client.woken_now() == [(A, READ)]
    client.wait(reader, "57")
    assert client.woken_now() == []


@pytest.mark.parametrize(
    ("told", "has_read"),
    [(tail(A, "57"), "42"), (tail(A, "50", closed=True), "50")],
    ids=["although the read found nothing", "the end of the stream"],
)
def test_what_was_told_during_a_read_is_read(told: dict[str, Any], has_read: str) -> None:
    client = connected()
    reader = client.waiting(A, "42")
    assert client.hear(tail(A, "50")) == [(A, READ)]
    assert client.hear(told) == []
    client.wait(reader, has_read)
    assert client.woken_now() == [(A, READ)]


def test_a_page_of_a_cache_that_ends_before_the_told_tail_is_read_on_from() -> None:
    client = connected()
    reader = client.waiting(A, "42")
    assert client.hear(tail(A, "57")) == [(A, READ)]
    client.wait(reader, "50")
    assert client.woken_now() == [(A, READ)]
    client.wait(reader, "50")
    assert client.woken_now() == [], "it found nothing, and is not sent in a circle"
    assert client.hear(tail(A, "57")) == [(A, READ)]


def test_a_refusal_that_a_read_does_not_confirm_lets_the_reader_wait_otherwise_before_it_asks_again() -> None:
    client, reader = watching("old")
    assert client.hear({"stream": A, "status": 401, "error": "expired"}) == [(A, READ)]
    client.wait(reader, "42", "new")
    assert client.woken_now() == [(A, ELSEWHERE)]
    assert client.frames() == []
    client.wait(reader, "42", "new")
    assert client.woken_now() == []
    assert client.frames() == [Watching(watch=(A,), token="new")]


def test_watches_of_one_token_share_frames_of_at_most_100_names() -> None:
    client = connected()
    for number in range(250):
        client.waiting(f"{A}{number}", "0", "t")
    client.waiting(B, "0")
    assert [(len(frame.watch), frame.token) for frame in client.frames()] == [
        *[(100, "t"), (100, "t"), (50, "t")],
        (1, None),
    ]
    assert client.frames() == []


def test_two_readers_of_a_stream_have_one_watch_which_the_second_has_repeated() -> None:
    client = connected()
    first, second = client.waiting(A, "42"), client.watches.join(A)
    assert client.frames() == [Watching(watch=(A,))]
    client.hear(tail(A, "42", seconds=60))
    client.wait(second, "40")
    assert client.frames() == [Watching(watch=(A,))]
    assert client.hear(tail(A, "42", seconds=60)) == [(A, READ)], "the second, which is behind"
    client.watches.leave(second)
    assert client.frames() == []
    client.watches.leave(first)
    assert client.frames() == [Frame(unwatch=(A,))]
    assert not client.watches.is_used


def test_a_reader_that_comes_between_a_wake_up_and_the_answer_that_it_overtook_reads() -> None:
    client, _ = watching()
    assert client.hear(tail(A, "57")) == [(A, READ)]
    client.waiting(A, "42")
    assert client.woken_now() + client.hear(tail(A, "42", seconds=3600)) == [(A, READ)]


def test_a_watch_is_repeated_with_a_new_token_before_its_lease_ends() -> None:
    client, reader = watching("first")
    for seconds in (100, 3600):  # The answer to another reader, whose token ends later.
        client.hear(tail(A, "42", seconds=seconds))
    assert client.pass_to(client.watches.next_at() - 1) == []
    assert client.pass_to(client.watches.next_at()) == [(A, AGAIN)]
    assert client.now == 1080.0
    client.wait(reader, "42", "second")
    assert client.frames() == [Watching(watch=(A,), token="second")]


def test_if_the_reader_that_was_to_repeat_a_watch_does_not_come_back_another_one_repeats_it() -> None:
    client = connected()
    for _ in range(2):
        client.waiting(A, "42")
    client.frames()
    client.hear(tail(A, "42", seconds=100))
    assert client.pass_to(1080.0) == [(A, AGAIN)]
    assert client.pass_to(client.watches.next_at()) == [(A, AGAIN)]


def test_a_lease_that_ends_while_its_reader_reads_is_repeated_when_it_waits_and_wakes_nobody() -> None:
    client, reader = watching()
    client.hear(tail(A, "50", seconds=100))
    assert client.pass_to(2000.0) == []
    client.watches.frames(2000.0)
    assert client.watches.next_at() > 2000.0, "the driver does not turn in a circle"
    client.wait(reader, "50")
    assert client.frames() == [Watching(watch=(A,))]


@pytest.mark.parametrize("message", ["Internal server error", "Endpoint request timed out"])
def test_after_an_error_of_api_gateway_what_is_not_answered_is_asked_again_ever_later(message: str) -> None:
    """At last its reader waits otherwise. An answer that comes in the pause counts."""
    client = connected()
    readers = {name: client.waiting(name, "42") for name in (A, B)}
    for failures in range(1, 4):
        assert client.frames() == [Watching(watch=(A, B) if failures == 1 else (B,))]
        for _ in range(2):  # Also of another frame.
            assert client.hear({"message": message, "connectionId": "x", "requestId": "y"}) == []
        assert client.hear(tail(A, "42", seconds=3600)) == []
        pause_seconds = client.watches.next_at() - client.now
        assert 2**failures / 2 <= pause_seconds <= 2**failures * 1.5
        assert client.pass_to(client.watches.next_at()) == [(B, AGAIN)]
        client.wait(readers[B], "42")
    client.frames()
    assert client.hear({"message": message}) == [(B, ELSEWHERE)]
    client.wait(readers[B], "42")
    client.frames()
    client.hear(tail(B, "42", seconds=10))
    assert client.pass_to(client.watches.next_at()) == [(B, AGAIN)]
    client.wait(readers[B], "42")
    client.frames()
    assert client.hear({"message": message}) == [], "an answer ends the count"
    assert not client.watches.is_broken


def guarded() -> Client:
    """Its server answers pings."""
    client, _ = watching(seconds=3600)
    assert client.watches.next_at() == client.now + watches.SILENT_SECONDS
    client.watches.received("[]", client.now)
    return client


def test_a_connection_by_which_nothing_comes_is_asked_and_given_up_within_75_seconds() -> None:
    client = guarded()
    for _ in range(3):
        heard_at = client.now
        client.pass_to(client.watches.next_at())
        assert (client.now, client.frames()) == (heard_at + watches.QUIET_SECONDS, [Frame()])
        assert client.hear(tail(B, "1")) == []
    heard_at = client.now
    for _ in range(2):
        assert not client.watches.is_broken
        client.pass_to(client.watches.next_at())
        client.frames()
    assert client.watches.is_broken
    assert client.now == heard_at + watches.QUIET_SECONDS + watches.PONG_SECONDS < heard_at + 75


def test_after_a_sleep_the_connection_is_asked_at_once_and_has_five_seconds() -> None:
    """An answer to an earlier ping may have come in the sleep."""
    client = guarded()
    client.now += watches.QUIET_SECONDS
    client.frames()
    client.now += 600
    client.watches.doubt(client.now)
    client.pass_to(client.now)
    assert (client.frames(), client.watches.is_broken) == ([Frame()], False)
    client.pass_to(client.now + 5)
    assert client.watches.is_broken


def test_a_server_that_answers_no_ping_gets_one_after_8_minutes_and_is_not_given_up() -> None:
    """What is heard does not count: AWS does not say whether that keeps a connection from being idle. Of the
    last release it answers `unwatch` as others answer a ping."""
    client, reader = watching()
    client.watches.leave(reader)
    client.waiting(B, "42")
    assert client.frames() == [Frame(unwatch=(A,)), Watching(watch=(B,))]
    for heard in ("[]", json.dumps(tail(B, "42", seconds=3600)), json.dumps(tail(A, "1"))):
        client.now += 1
        client.watches.received(heard, client.now)
    assert client.watches.next_at() == client.now - 3 + watches.SILENT_SECONDS
    client.now = client.watches.next_at()
    assert (client.frames(), client.frames()) == ([Frame()], [])
    client.watches.doubt(client.now)
    assert client.frames() == [Frame()]
    assert client.watches.next_at() == client.now + watches.SILENT_SECONDS


def test_who_leaves_ends_the_watch_that_was_asked_for() -> None:
    client = connected()
    client.watches.leave(client.waiting(A, "42"))
    assert client.frames() == []
    first = client.waiting(A, "42")
    client.frames()
    client.hear(tail(A, "42", seconds=3600))
    second = client.waiting(A, "42")
    for reader in (first, second):
        client.watches.leave(reader)
    assert client.frames() == [Frame(unwatch=(A,))]


def test_after_a_lost_connection_watches_are_repeated_and_at_last_readers_wait_otherwise() -> None:
    client = connected()
    readers = [client.waiting(name, "42") for name in (A, B)]
    client.frames()
    client.hear(tail(A, "42", seconds=3600))
    for _ in range(3):
        client.watches.lost(client.now)
        assert client.woken_now() == [(A, AGAIN), (B, AGAIN)]
        for reader in readers:
            client.wait(reader, "42")
        assert client.watches.needs_connection
        assert client.now < client.watches.connect_at < client.now + 5
        client.now = client.watches.connect_at
    client.watches.lost(client.now)
    assert client.woken_now() == [(A, ELSEWHERE), (B, ELSEWHERE)]
    client.wait(readers[0], "42")
    assert client.woken_now() == [(A, ELSEWHERE)]
    client.now = client.watches.connect_at
    client.wait(readers[0], "42")
    assert client.woken_now() == []
    client.watches.opened(client.now)
    assert client.frames() == [Frame(), Watching(watch=(A,))]


@pytest.mark.parametrize("has_worked", [False, True])
def test_a_socket_by_which_nothing_ever_comes_is_taken_for_absent(has_worked: bool) -> None:
    """But one that has worked before is tried once more: its server may have been frozen."""
    client, reader = watching()
    if has_worked:
        client.hear(tail(A, "42", seconds=3600))
        client.watches.lost(client.now)
        client.now = client.watches.connect_at
    for _ in range(1 + has_worked):
        client.wait(reader, "42")
        client.watches.opened(client.now)
        client.frames()
        client.pass_to(client.now + watches.ANSWER_SECONDS)
        assert client.watches.is_broken
        client.woken_now()
        client.watches.lost(client.now)
        assert client.woken_now() == [(A, ELSEWHERE)]
        client.now = min(client.watches.connect_at, client.now + 3600)
    client.wait(reader, "42")
    assert client.woken_now() == [(A, ELSEWHERE)], "at once"
    assert (client.watches.is_silent, client.watches.needs_connection) == (True, False)


def test_a_socket_that_never_worked_is_tried_less_and_less_often_and_its_readers_do_not_wait_for_it() -> None:
    client = Client()
    reader, pauses = client.watches.join(A), []
    for _ in range(20):
        client.wait(reader, "42")
        assert client.woken_now() == []
        client.watches.lost(client.now)
        assert client.woken_now() == [(A, ELSEWHERE)]
        pauses.append(client.watches.connect_at - client.now)
        client.now = client.watches.connect_at
    assert pauses[0] < 1
    assert 150 <= pauses[-1] <= 450


def test_a_connection_that_was_closed_because_nobody_followed_is_opened_again_at_once() -> None:
    client = connected()
    client.watches.leave(client.waiting(A, "42"))
    client.watches.closed()
    client.waiting(A, "42")
    assert client.watches.needs_connection
    assert client.watches.connect_at < client.now


def test_a_name_that_fits_into_no_frame_is_not_asked_for() -> None:
    client = connected()
    client.waiting("/" + "x" * 40_000, "42")
    assert [why for _, why in client.woken_now()] == [ELSEWHERE]
    assert client.frames() == []


def page(name: str, start: str, end: str, data: str, **more: Any) -> dict[str, Any]:
    return tail(
        name, end, **{"from": start, "type": "text/plain", "etag": f'"x:{start}:{end}"', "data": data}, **more
    )


def test_the_page_behind_what_a_reader_has_read_comes_with_the_message() -> None:
    client = connected()
    reader = client.waiting(A, "42")
    pages = page(A, "42", "44", "hi"), page(A, "44", "47", "AQID", encoding="base64")
    assert client.hear(*pages) == [(A, READ)]
    first, second = reader.take("42"), reader.take("44")
    assert first is not None
    assert first.headers == {
        "stream-next-offset": "44",
        "content-type": "text/plain",
        "etag": '"x:42:44"',
        "stream-up-to-date": "true",
    }
    assert (first.body, second and second.body, reader.take("47")) == (b"hi", b"\1\2\3", None)
    client.wait(reader, "47")
    assert client.hear(page(A, "47", "47", "", closed=True)) == [(A, READ)]
    last = reader.take("47")
    assert last is not None
    assert (last.body, last.headers["stream-closed"]) == (b"", "true")


@pytest.mark.parametrize(
    "message",
    [
        page(A, "40", "44", "more"),
        page(A, "43", "44", "x"),
        page(A, "42", "44", "no base64!", encoding="base64"),
        tail(A, "44", **{"from": "42", "data": 7}),
        tail(A, "44", **{"from": "42", "data": "hi"}),
    ],
)
def test_a_reader_for_whom_a_message_has_no_page_reads(message: dict[str, Any]) -> None:
    client = connected()
    reader = client.waiting(A, "42")
    assert client.hear(message) == [(A, READ)]
    assert reader.take("42") is None


def test_a_page_without_data_hides_nothing_that_comes_later() -> None:
    client = connected()
    reader = client.waiting(A, "42")
    assert client.hear(page(A, "42", "42", "")) == []
    assert client.hear(tail(A, "44")) == [(A, READ)]
    assert reader.take("42") is None


def test_a_reader_that_takes_no_pages_keeps_a_few_of_them() -> None:
    client = connected()
    reader = client.waiting(A, "0000")
    for at in range(1000):
        client.hear(page(A, f"{at:04}", f"{at + 1:04}", "x"))
    assert 0 < len(reader.pages) <= 64


NAMES = st.sampled_from([A, B])
SELDOM = st.sampled_from([False] * 9 + [True])


class Follower:
    """As `follow`: it reads, waits, and does as it is told."""

    def __init__(self, reader: watches.SocketReader) -> None:
        self.reader = reader
        self.offset = "00"
        self.woken: watches.Woken | None = None
        self.is_waiting = self.has_read = False


class AnyOrder(RuleBasedStateMachine):
    """A server with two streams, whose frames and messages come in any order, twice or together; connections
    break, frames get lost, and readers come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.watches = watches.Watches()
        self.now = 0.0
        self.tails = Counter[str]()
        self.closed = set[str]()
        self.followers: list[Follower] = []
        self.is_open = False
        #: Nothing passes any more, and nobody says so.
        self.is_dead = False
        #: When the watches end, and by which frame they were asked for.
        self.registered: dict[str, tuple[float, int]] = {}
        self.sent: list[tuple[int, Frame]] = []
        self.count = 0
        self.messages: list[dict[str, Any]] = []
        #: Whose readers may be woken with READ.
        self.about: set[str] | None = None

    def offset(self, name: str) -> str:
        return f"{self.tails[name]:02}"

    def text(self, start: str, end: str) -> str:
        return "".join(f"{number} " for number in range(int(start), int(end)))

    def message(self, name: str, **more: Any) -> dict[str, Any]:
        end = {"closed": True} if name in self.closed else more
        return {"stream": name, "offset": self.offset(name), **end}

    @precondition(lambda self: len(self.followers) < 4)
    @rule(name=NAMES, missed=st.integers(0, 2))
    def follow(self, name: str, missed: int) -> None:
        """It has read before, and others may have watched since."""
        follower = Follower(self.watches.join(name))
        follower.offset = f"{max(0, self.tails[name] - missed):02}"
        self.followers.append(follower)
        self.wait(follower)

    @precondition(lambda self: self.followers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        follower = data.draw(st.sampled_from(self.followers))
        self.watches.leave(follower.reader)
        self.followers.remove(follower)

    def read_and_wait(self, follower: Follower) -> None:
        if follower.woken is not AGAIN and not follower.has_read and self.read_page(follower):
            self.watches.leave(follower.reader)
            self.followers.remove(follower)
            return
        self.wait(follower)

    def read_page(self, follower: Follower) -> bool:
        """The page that came with a message, or all that is there. Returns whether it is the last one."""
        name = follower.reader.name
        page = follower.reader.take(follower.offset) if follower.woken is READ else None
        if page is None:
            follower.offset = self.offset(name)
            return name in self.closed
        end = page.headers["stream-next-offset"]
        assert page.body.decode() == self.text(follower.offset, end)
        follower.offset = end
        return "stream-closed" in page.headers

    def wait(self, follower: Follower) -> None:
        def wake(why: watches.Woken) -> None:
            assert follower.is_waiting, "it is woken once"
            if why is READ and self.about is not None:
                assert follower.reader.name in self.about, "it is woken by its own stream"
            follower.is_waiting, follower.woken = False, why

        follower.is_waiting, follower.has_read, follower.woken = True, False, None
        self.watches.wait(follower.reader, follower.offset, None, self.now, wake)

    @precondition(lambda self: any(not one.is_waiting for one in self.followers))
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """Messages may come between the read and the wait."""
        follower = data.draw(st.sampled_from([one for one in self.followers if not one.is_waiting]))
        if follower.woken is not AGAIN and not follower.has_read and follower.reader.name not in self.closed:
            self.read_page(follower)
            follower.has_read = True

    @precondition(lambda self: any(not one.is_waiting for one in self.followers))
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        self.read_and_wait(data.draw(st.sampled_from([one for one in self.followers if not one.is_waiting])))

    @rule(name=NAMES, more=st.none() | st.integers(0, 3))
    def append(self, name: str, more: int | None) -> None:
        """Tells it without its data, or with them and what is before."""
        if name not in self.closed and self.tails[name] < 99:
            self.tails[name] += 1
            self.tell(name, more)

    @rule(name=NAMES, really=SELDOM)
    def close(self, name: str, *, really: bool) -> None:
        if really:
            self.closed.add(name)
            self.tell(name)

    def tell(self, name: str, more: int | None = 0) -> None:
        if self.is_open and self.is_registered(name):
            end = self.offset(name)
            start = end if more is None else f"{max(0, int(end) - more):02}"
            data = {} if more is None else page(name, start, end, self.text(start, end))
            self.messages.append(data | self.message(name))
        if name in self.closed:
            self.registered.pop(name, None)

    def is_registered(self, name: str) -> bool:
        return name in self.registered and self.registered[name][0] > self.now

    @precondition(lambda self: not self.is_open and self.watches.needs_connection)
    @rule(succeeds=SELDOM.map(lambda seldom: not seldom))
    def connect(self, *, succeeds: bool) -> None:
        self.now = max(self.now, self.watches.connect_at)
        if succeeds:
            self.watches.opened(self.now)
            self.is_open, self.is_dead = True, False
            self.send()
        else:
            self.watches.lost(self.now)

    @precondition(lambda self: self.is_open)
    @rule()
    def send(self) -> None:
        for frame in map(parse_frame, self.watches.frames(self.now)):
            self.count += 1
            if self.is_dead:
                continue
            if frame == Frame():
                self.watches.received("[]", self.now)
            else:
                self.sent.append((self.count, frame))

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), seconds=st.sampled_from([1, 100, 3600]))
    def arrive(self, data: st.DataObject, seconds: int) -> None:
        self.carry_out(*self.sent.pop(data.draw(st.integers(0, len(self.sent) - 1))), seconds)

    def carry_out(self, number: int, frame: Frame, seconds: int = 3600) -> None:
        """A frame that arrives late changes nothing of what a later one asked."""
        for name in frame.unwatch + frame.watch:
            if self.registered.get(name, (0.0, 0))[1] < number:
                self.registered.pop(name, None)
                if name in frame.watch and name not in self.closed:
                    self.registered[name] = (self.now + seconds, number)
        self.messages += [self.message(name, seconds=seconds) for name in frame.watch]

    @precondition(lambda self: self.sent)
    @rule(status=st.sampled_from([0, 401, 503, 504]), really=SELDOM)
    def fail(self, status: int, *, really: bool) -> None:
        """The frame is lost, or refused."""
        if not really:
            return
        _, frame = self.sent.pop(0)
        if status == 504:
            self.messages.append({"message": "Endpoint request timed out"})
        elif status:
            self.messages += [{"stream": n, "status": status, "error": "no"} for n in frame.watch]
            for name in frame.watch:
                self.registered.pop(name, None)

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), again=st.booleans(), together=st.booleans())
    def hear(self, data: st.DataObject, *, again: bool, together: bool) -> None:
        message = data.draw(st.sampled_from(self.messages))
        heard = self.messages if together else [message]
        self.receive(heard)
        # An answer comes once.
        self.messages = [one for one in self.messages if one not in heard or (again and "seconds" not in one)]

    def receive(self, heard: list[dict[str, Any]]) -> None:
        self.about = {one.get("stream", "") for one in heard}
        self.watches.received(json.dumps(heard), self.now)
        self.about = None

    @precondition(lambda self: self.is_open)
    @rule(really=SELDOM)
    def break_off(self, *, really: bool) -> None:
        if really:
            self.cut()

    def cut(self) -> None:
        self.is_open = False
        self.registered, self.sent, self.messages = {}, [], []
        self.watches.lost(self.now)

    @rule(seconds=st.sampled_from([0.1, 10.0, 50.0, 1000.0]))
    def time_passes(self, seconds: float) -> None:
        self.pass_to(self.now + seconds)

    def pass_to(self, now: float) -> None:
        self.now = now
        if self.is_open:
            self.about = set()
            self.watches.tick(self.now)
            self.about = None
            if self.watches.is_broken:
                self.cut()

    @invariant()
    def who_waits_on_a_connection_is_asked_for_or_told(self) -> None:
        for follower in self.followers:
            if follower.is_waiting and self.is_open:
                watch = self.watches._watches[follower.reader.name]
                assert watch.is_asked or watch.until > -math.inf

    def teardown(self) -> None:
        self.settle()
        self.is_dead, self.registered = self.is_open, {}
        self.settle()

    def settle(self) -> None:
        """From now on nothing fails: within two minutes every reader has read everything, and waits."""
        waited_seconds = 0.0
        for _ in range(1000):
            if not self.is_open and self.watches.needs_connection:
                self.connect(succeeds=True)
            self.send_all()
            going_on = [one for one in self.followers if not one.is_waiting]
            for follower in going_on:
                if follower.woken is ELSEWHERE:  # Long-polls, until the socket is tried again.
                    self.pass_to(max(self.now + 1, self.watches.connect_at))
                self.read_and_wait(follower)
            if going_on or self.watches.needs_connection:
                continue
            if all(self.is_done(one) for one in self.followers):
                return
            before = self.now
            self.pass_to(max(before, self.watches.next_at()))
            waited_seconds += self.now - before
            assert waited_seconds <= 120, "somebody waits for a stream that has moved"
        raise AssertionError("they turn in a circle")

    def send_all(self) -> None:
        if self.is_open:
            self.send()
        for number, frame in self.sent:
            self.carry_out(number, frame)
        heard, self.sent, self.messages = self.messages, [], []
        if heard:
            self.receive(heard)

    def is_done(self, follower: Follower) -> bool:
        name = follower.reader.name
        is_current = follower.offset == self.offset(name) and name not in self.closed
        return is_current and self.is_registered(name)


AnyOrder.TestCase.settings = settings(max_examples=3 * settings().max_examples, stateful_step_count=50)
test_in_any_order_nobody_waits_for_a_stream_that_has_moved = AnyOrder.TestCase

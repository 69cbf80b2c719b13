"""The circuit breaker's rules, as a table of cases and for any order of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import refusal
from tidemark.aws.dynamodb import DynamoDB, Fault
from tidemark.aws.retry import PROBE_SECONDS, SILENT_SECONDS, SILENT_TRIES, Breaker, NoAnswer, breaker_of
from tidemark.protocol.errors import OutcomeUnknown, ProtocolError, StorageSilent

#: Each step is (time, what happens): `s4` is the silence of a try that was sent at 4, `a` an answer.
CASES: dict[str, tuple[list[tuple[float, str]], bool]] = {
    "a lonely timeout": ([(5, "s0")], False),
    "a lonely call, whose two tries time out": ([(5, "s0"), (10, "s5")], False),
    "two calls that time out": ([(5, "s0"), (10, "s5"), (15, "s10")], True),
    "three at once that time out": ([(5, "s0"), (5, "s0"), (5, "s0")], True),
    "refused connections, for a moment": ([(0, "s0"), (0.1, "s0.1"), (0.2, "s0.2"), (1.9, "s1.9")], False),
    "refused connections, for longer": ([(0, "s0"), (0.1, "s0.1"), (2.1, "s2.1")], True),
    "an answer between": ([(5, "s0"), (6, "a"), (11, "s6"), (11, "s6")], False),
    "an answer at the end": ([(5, "s0"), (5, "s0"), (5, "s0"), (5.1, "a")], False),
    "late silences of what was sent before an answer": (
        [(4, "a"), (5, "s0"), (5, "s1"), (5, "s2"), (6, "s3")],
        False,
    ),
    "silent again after an answer": ([(5, "s0"), (6, "a"), (11, "s6"), (11, "s6"), (11, "s6")], True),
}


def play(steps: list[tuple[float, str]]) -> Breaker:
    breaker = Breaker()
    for now, step in steps:
        if step == "a":
            breaker.answered(now)
        else:
            breaker.silent(float(step[1:]), now)
    return breaker


@pytest.mark.parametrize(("steps", "is_open"), CASES.values(), ids=CASES)
def test_the_breaker_opens_after_several_silences_over_some_seconds(
    steps: list[tuple[float, str]], is_open: bool
) -> None:
    breaker = play(steps)
    assert breaker.is_open is is_open
    assert breaker.admit(steps[-1][0]) is not is_open


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from(["admit", "answer", "silence"])), max_size=60))
def test_the_breaker_is_never_open_for_long_or_without_reason(steps: list[tuple[float, str]]) -> None:
    """Whatever happens: it opens only after enough silences in a row, an answer closes it, and while
    it is open somebody may try within every interval, and only one."""
    breaker, now, silences, since, probed_at = Breaker(), 0.0, 0, 0.0, None
    for pause, step in steps:
        sent, now = now, now + pause
        if step == "answer":
            breaker.answered(now)
            silences = 0
            assert not breaker.is_open
        elif step == "silence":
            was_open = breaker.is_open
            breaker.silent(sent, now)
            since = sent if not silences else min(since, sent)
            silences += 1
            if breaker.is_open and not was_open:
                assert silences >= SILENT_TRIES
                assert now - since >= SILENT_SECONDS
                probed_at = now
        elif breaker.is_open:
            assert probed_at is not None
            due = now >= probed_at + PROBE_SECONDS
            assert breaker.admit(now) is due
            assert not due or not breaker.admit(now)
            probed_at = now if due else probed_at
        else:
            assert breaker.admit(now)


class Service:
    """DynamoDB as `answer` says, by a clock that only this moves."""

    def __init__(self) -> None:
        self.now, self.sent = 0.0, 0
        self.answer: tuple[int, bytes] | None = None
        self.dynamodb = DynamoDB(self._send)
        self.dynamodb.now, self.dynamodb.sleep = lambda: self.now, self.wait

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def _send(self, _operation: str, _body: bytes) -> tuple[int, bytes]:
        self.sent += 1
        if self.answer is not None:
            return self.answer
        self.wait(5)
        raise NoAnswer("injected")

    def call(self) -> object:
        return self.dynamodb.call("GetItem", {})


@pytest.fixture
def silenced() -> Service:
    """The call that opens the breaker was sent, so its outcome is unknown."""
    service = Service()
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            service.call()
    return service


def test_a_call_that_is_not_sent_says_that_nothing_was_written(silenced: Service) -> None:
    sent, now = silenced.sent, silenced.now
    with pytest.raises(StorageSilent) as refused:
        silenced.call()
    assert (silenced.sent, silenced.now) == (sent, now), "at once, and without a call"
    assert refused.value.headers == {"Retry-After": "1"}
    assert refused.value.message == "Storage does not answer; nothing was written; try again in 1 s"


def test_a_probe_without_a_reply_has_an_unknown_outcome(silenced: Service) -> None:
    silenced.wait(PROBE_SECONDS)
    with pytest.raises(OutcomeUnknown):
        silenced.call()


def test_the_first_success_closes_the_breaker(silenced: Service) -> None:
    silenced.answer = (200, b"{}")
    silenced.wait(PROBE_SECONDS)
    assert [silenced.call() for _ in range(3)] == [{}, {}, {}]


@pytest.mark.parametrize(
    "answer",
    [refusal("ThrottlingException"), refusal("AccessDeniedException"), (500, b"{}")],
    ids=["throttled", "refused", "internal error"],
)
def test_error_replies_do_not_open_the_breaker_and_close_it(
    silenced: Service, answer: tuple[int, bytes]
) -> None:
    """429 and refusals come from a service that is there."""
    for service, calls in (Service(), 20), (silenced, 1):
        service.answer = answer
        for _ in range(calls):
            service.wait(1)
            with pytest.raises((Fault, ProtocolError)):
                service.call()
        assert not service.dynamodb.breaker.is_open


def test_clients_of_one_endpoint_share_a_breaker_and_two_services_do_not() -> None:
    one = breaker_of("DynamoDB", "http://127.0.0.1:1")
    assert breaker_of("DynamoDB", "http://127.0.0.1:1") is one
    assert breaker_of("S3", "http://127.0.0.1:1") is not one

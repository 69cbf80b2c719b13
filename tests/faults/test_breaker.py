"""The circuit breaker's rules, for any order of events, and what a call of DynamoDB makes of them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import refusal
from tidemark.aws.dynamodb import DynamoDB, Fault
from tidemark.aws.retry import BETWEEN_PROBES_SECONDS, SILENCE_SECONDS, SILENT_TRIES, Breaker, NoAnswer
from tidemark.protocol.errors import OutcomeUnknown, ProtocolError, StorageSilent

STEPS = st.lists(st.tuples(st.floats(0, 3), st.sampled_from(["admit", "answer", "silence", "late silence"])))


@given(STEPS)
@example([(1, "silence"), (0.5, "silence"), (0.5, "silence")])
@example([(0.1, "silence")] * 4 + [(2, "silence"), (0, "admit")])
@example([(3, "silence")] * 3 + [(0.25, "admit"), (0.25, "admit"), (0, "admit"), (0, "answer"), (0, "admit")])
@example([(3, "silence")] * 2 + [(1, "answer"), *[(1, "late silence")] * 3, *[(3, "silence")] * 3])
def test_a_breaker_opens_after_silences_over_seconds_until_an_answer(steps: list[tuple[float, str]]) -> None:
    """A silence counts from when it was sent, only if that was behind the latest answer. While the breaker
    is open, one try is let through in every interval, which does not wait for what became of the last one."""
    breaker, now, answered_at, silences, probe_at = Breaker(), 0.0, 0.0, list[float](), None
    breaker.answered(now)
    for pause, step in steps:
        sent, now = now, now + pause
        if step == "answer":
            breaker.answered(now)
            answered_at, silences, probe_at = now, [], None
        elif step == "admit":
            expected = probe_at is None or now >= probe_at
            assert breaker.admit(now) is expected
            probe_at = now + BETWEEN_PROBES_SECONDS if probe_at is not None and expected else probe_at
        else:
            sent = sent if step == "silence" else answered_at - 0.1
            breaker.silent(sent, now)
            silences += [sent] if sent >= answered_at else []
            is_silent = len(silences) >= SILENT_TRIES and now - min(silences) >= SILENCE_SECONDS
            if is_silent and probe_at is None and sent >= answered_at:
                probe_at = now + BETWEEN_PROBES_SECONDS
        assert breaker.probe_at == probe_at


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
    silenced.wait(BETWEEN_PROBES_SECONDS)
    with pytest.raises(OutcomeUnknown):
        silenced.call()


def test_the_first_success_closes_the_breaker(silenced: Service) -> None:
    silenced.answer = (200, b"{}")
    silenced.wait(BETWEEN_PROBES_SECONDS)
    assert [silenced.call() for _ in range(3)] == [{}, {}, {}]


@pytest.mark.parametrize(
    "answer",
    [refusal("ThrottlingException"), refusal("AccessDeniedException"), (500, b"{}")],
    ids=["throttled", "refused", "internal error"],
)
def test_error_replies_open_no_breaker_and_close_it(silenced: Service, answer: tuple[int, bytes]) -> None:
    """429 and refusals come from a service that is there."""
    for service, calls in (Service(), 20), (silenced, 1):
        service.answer = answer
        for _ in range(calls):
            service.wait(1)
            with pytest.raises((Fault, ProtocolError)):
                service.call()
        assert service.dynamodb.breaker.probe_at is None

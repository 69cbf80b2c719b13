"""The states of a delivery (§7): each transition, and what no sequence of transitions may do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.errors import AlreadyClaimed, DeliveryFenced, InvalidAck
from tidemark.subscriptions import state as rules
from tidemark.subscriptions.configuration import SubscriptionKind

WEBHOOK, PULL_WAKE = SubscriptionKind.WEBHOOK, SubscriptionKind.PULL_WAKE
NOW, LEASE = 1_000_000, 30_000
IDLE = rules.DeliveryState()
IN_FLIGHT = rules.begin_delivery(IDLE, WEBHOOK, "w1", NOW, LEASE)
CALLED = rules.start_attempt(IN_FLIGHT, NOW, LEASE, LEASE)
LEASED = rules.attempt_succeeded(CALLED, NOW)
ANNOUNCED = rules.attempt_succeeded(rules.begin_delivery(IDLE, PULL_WAKE, "w1", NOW, LEASE), NOW)
CLAIMED = rules.claim_delivery(ANNOUNCED, "worker-1", "unused", NOW, LEASE)
ABANDONED = rules.attempt_abandoned(CALLED, NOW)
DEFERRED = rules.attempt_deferred(rules.begin_delivery(ABANDONED, WEBHOOK, "w2", NOW, LEASE), NOW, 0.5)
REFUSED, DROPPED, SILENT = (
    rules.attempt_failed(CALLED, NOW, 0.5, failure) for failure in rules.DeliveryFailure
)


@pytest.mark.parametrize(
    ("state", "after_ms", "step"),
    [
        (IDLE, 0, rules.Step.LOOK), (IN_FLIGHT, 0, rules.Step.DELIVER), (CALLED, 0, rules.Step.WAIT),
        (CALLED, LEASE - 1, rules.Step.WAIT), (CALLED, LEASE, rules.Step.EXPIRE),
        (LEASED, LEASE - 1, rules.Step.WAIT), (LEASED, LEASE, rules.Step.EXPIRE),
        (ANNOUNCED, 10**9, rules.Step.WAIT), (CLAIMED, LEASE - 1, rules.Step.WAIT),
        (CLAIMED, LEASE, rules.Step.EXPIRE), (REFUSED, 999, rules.Step.WAIT),
        (REFUSED, 1_000, rules.Step.DELIVER), (REFUSED, LEASE, rules.Step.EXPIRE),
        (DROPPED, 999, rules.Step.WAIT), (DROPPED, 1_000, rules.Step.EXPIRE),
        (SILENT, LEASE - 1, rules.Step.WAIT), (SILENT, LEASE, rules.Step.EXPIRE),
        (ABANDONED, 0, rules.Step.EXPIRE), (DEFERRED, 1_999, rules.Step.WAIT),
        (DEFERRED, 2_000, rules.Step.DELIVER), (DEFERRED, LEASE, rules.Step.EXPIRE),
        (rules.give_up(CALLED, NOW), 999, rules.Step.WAIT),
        (rules.give_up(CALLED, NOW), 1_000, rules.Step.LOOK),
    ],
)  # fmt: skip
def test_state_and_clock_say_what_is_next(
    state: rules.DeliveryState, after_ms: int, step: rules.Step
) -> None:
    assert rules.next_step(state, NOW + after_ms) is step


@pytest.mark.parametrize("of", [(2, 1, "w1"), (1, 2, "w1"), (1, 1, "w2"), (0, 0, "w1")])
def test_a_request_of_another_or_a_finished_delivery_is_fenced(of: tuple[int, int, str]) -> None:
    rules.check_fence(LEASED, 1, 1, "w1")
    for state, claim in ((LEASED, of), (rules.end_delivery(LEASED), (1, 1, "w1"))):
        with pytest.raises(DeliveryFenced):
            rules.check_fence(state, *claim)


def test_a_claim_is_refused_while_the_lease_lasts_and_names_the_holder() -> None:
    rules.check_unclaimed(ANNOUNCED, NOW)
    with pytest.raises(AlreadyClaimed) as refused:
        rules.check_unclaimed(CLAIMED, NOW + LEASE - 1)
    assert refused.value.details == {"current_holder": "worker-1", "generation": 1}
    rules.check_unclaimed(CLAIMED, NOW + LEASE)


def test_every_delivery_and_every_claim_of_one_whose_lease_is_over_has_a_higher_generation() -> None:
    again = rules.begin_delivery(rules.end_delivery(LEASED), WEBHOOK, "w2", NOW, LEASE)
    assert (IN_FLIGHT.generation, again.generation, again.wake_id) == (1, 2, "w2")
    assert (CLAIMED.generation, CLAIMED.wake_id) == (1, "w1")
    after = rules.claim_delivery(CLAIMED, "worker-2", "w2", NOW + LEASE, LEASE)
    assert (after.generation, after.wake_id, after.holder) == (2, "w2", "worker-2")


def test_an_ack_extends_the_lease_and_ends_the_retries() -> None:
    after = rules.extend_lease(REFUSED, NOW + 500, LEASE)
    assert (after.lease_until_ms, after.next_attempt_ms, after.failed) == (NOW + 500 + LEASE, None, False)


def test_retries_are_slower_each_time_across_generations() -> None:
    """From one second to sixty, ±20 %, and a new generation does not begin anew."""
    assert [rules.retry_delay_ms(attempts, 0.5) for attempts in (1, 2, 3, 6, 7, 1_000)] == [
        1_000, 2_000, 4_000, 32_000, 60_000, 60_000,
    ]  # fmt: skip
    assert (rules.retry_delay_ms(1, 0.0), rules.retry_delay_ms(1, 1.0)) == (800, 1_200)
    again = rules.begin_delivery(REFUSED, WEBHOOK, "w2", NOW + LEASE, LEASE)
    assert (again.attempts, again.failed) == (1, True)
    assert rules.begin_delivery(LEASED, WEBHOOK, "w2", NOW, LEASE).attempts == 0
    deferred = rules.attempt_deferred(rules.attempt_deferred(IN_FLIGHT, NOW, 0.5), NOW, 0.5)
    assert rules.begin_delivery(deferred, WEBHOOK, "w2", NOW + LEASE, LEASE).attempts == 2, (
        "it waits for a slot"
    )


@pytest.mark.parametrize("token", ["-1", "now", "", "12", f"{9:016}", f"{21:016}", "x" * 16])
def test_an_ack_is_inclusive_and_goes_neither_back_nor_beyond_the_tail(token: str) -> None:
    assert [rules.decide_ack(f"{offset:016}", acked=10, tail=20) for offset in (10, 15, 20)] == [10, 15, 20]
    with pytest.raises(InvalidAck):
        rules.decide_ack(token, acked=10, tail=20)


FAILURES = ["refused", "dropped", "silent"]
NAMES = ["begin", "start", *FAILURES, "abandoned", "deferred", "ok", "claim", "extend", "end"]
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 40_000)), max_size=30)


@given(STEPS, st.sampled_from(SubscriptionKind))
def test_whatever_happens_generations_never_fall_and_some_time_is_named(  # noqa: C901 - each is one step
    steps: list[tuple[str, int]], kind: SubscriptionKind
) -> None:
    """A state with a delivery in flight names a time, but for an announced one, which waits for a worker."""
    state, now_ms = IDLE, NOW
    for name, after_ms in steps:
        now_ms, before = now_ms + after_ms, state
        match name:
            case "begin":
                state = rules.begin_delivery(state, kind, f"w{now_ms}", now_ms, LEASE)
            case "claim" if kind is PULL_WAKE:
                state = rules.claim_delivery(state, "w", f"c{now_ms}", now_ms, LEASE)
            case "end":
                state = rules.end_delivery(state)
            case _ if state.wake_id is None:
                continue
            case "start":
                state = rules.start_attempt(state, now_ms, 5_000, LEASE)
            case "refused" | "dropped" | "silent":
                state = rules.attempt_failed(state, now_ms, 0.5, rules.DeliveryFailure(name))
            case "abandoned":
                state = rules.attempt_abandoned(state, now_ms)
            case "deferred":
                state = rules.attempt_deferred(state, now_ms, 0.5)
            case "ok":
                state = rules.attempt_succeeded(state, now_ms)
            case "extend":
                state = rules.extend_lease(state, now_ms, LEASE)
        assert state.generation >= before.generation
        assert state.slow or not before.slow or name == "claim", "only a quick answer makes it quick"
        if state.wake_id is not None and (state.holder or kind is WEBHOOK):
            assert rules.due_ms(state) is not None


def test_the_time_of_the_last_delivery_is_when_a_delivery_arrived() -> None:
    """By an attempt that succeeded or by a claim. A failure and the end of a delivery leave it as it was, so
    does what comes after the arrival."""
    assert (IDLE.delivered_ms, IN_FLIGHT.delivered_ms, CALLED.delivered_ms) == (None, None, None)
    arrived = rules.attempt_succeeded(CALLED, NOW + 70)
    assert arrived.delivered_ms == NOW + 70
    assert rules.extend_lease(arrived, NOW + 900, LEASE).delivered_ms == NOW + 70
    again = rules.start_attempt(
        rules.begin_delivery(rules.end_delivery(arrived), WEBHOOK, "w2", NOW, LEASE), NOW, LEASE, LEASE
    )
    assert rules.attempt_failed(again, NOW + 950, 0.5, rules.DeliveryFailure.REFUSED).delivered_ms == NOW + 70
    assert rules.extend_lease(again, NOW + 990, LEASE).delivered_ms == NOW + 990, "the callback proves it"
    assert rules.claim_delivery(ANNOUNCED, "worker-1", "unused", NOW + 5, LEASE).delivered_ms == NOW + 5

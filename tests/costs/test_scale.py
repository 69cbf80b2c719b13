"""The model of a large system: the page shows its numbers, and it moves as it must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fanout import _Queues, fanout
from benchmarks.fanout import line as line_of_fanout
from benchmarks.scale import (
    LARGE,
    READ,
    WAKE_UP,
    WRITERS_ALONE,
    Load,
    demand_of,
    event_stream_wins_from,
    quotas_of,
    render_all,
    socket_dollars_of,
)
from benchmarks.surge import line, surge
from tidemark.aws.sqs import QueueUnavailable

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "scale.md").read_text()


@pytest.mark.parametrize("table", render_all(), ids=range(len(render_all())))
def test_the_page_has_the_models_numbers(table: str) -> None:
    assert f"\n{table}\n" in PAGE


def test_the_page_says_what_writes_alone_cost() -> None:
    assert f"${demand_of(WRITERS_ALONE).dollars:,.0f} an hour" in PAGE


def test_the_page_says_from_when_on_an_event_stream_is_cheaper_than_a_socket() -> None:
    assert f"From {event_stream_wins_from():.1f} wake-ups a second" in PAGE
    assert f"${WAKE_UP + READ:.2f} a million for a wake-up" in PAGE


def test_silent_sockets_cost_what_the_table_of_costs_says() -> None:
    silent = socket_dollars_of(Load(appends_per_second=0, waiting_readers=100_000))
    assert sum(silent.values()) < 15


def test_silent_readers_begin_a_poll_every_twenty_five_seconds() -> None:
    """As counted for one reader: 2.4 polls a minute, each with a read of the stream's item."""
    silent = demand_of(Load(appends_per_second=0, waiting_readers=60))
    assert silent.polls == pytest.approx(2.4)
    assert silent.read_units == pytest.approx(14.4)
    assert silent.queue_calls == pytest.approx(4.8)


def test_readers_of_busy_streams_begin_a_poll_with_each_append() -> None:
    busy = demand_of(Load(streams=10, appends_per_second=100, waiting_readers=10))
    assert busy.polls == pytest.approx(100, rel=0.01)


def test_an_append_whose_tail_is_known_reads_nothing_itself() -> None:
    known = demand_of(Load(waiting_readers=0, known_tails=1.0))
    unknown = demand_of(Load(waiting_readers=0))
    assert unknown.read_units - known.read_units == 2 * LARGE.appends_per_second
    assert unknown.write_units == known.write_units


def test_the_quota_that_ends_it_first_is_named_first() -> None:
    assert [quota.times for quota in quotas_of(LARGE)] == sorted(
        (quota.times for quota in quotas_of(LARGE)), reverse=True
    )
    assert quotas_of(LARGE)[0].name.startswith("Lambda")
    assert quotas_of(replace(LARGE, waiting_readers=0))[0].name == "the template's `RequestsPerSecond`"


@pytest.mark.parametrize(("environments", "streams"), [(32, 1), (128, 1), (1_000, 1_000)])
def test_what_the_page_says_of_a_surge_is_what_the_code_does(environments: int, streams: int) -> None:
    """In virtual time, so it is the same on every machine."""
    assert line(surge(environments, streams)) in PAGE


@pytest.mark.parametrize(("streams", "readers"), [(1_000, 1), (1, 1_000)])
def test_what_the_page_says_of_a_burst_is_what_the_notifier_does(streams: int, readers: int) -> None:
    assert line_of_fanout(fanout(streams, readers, appends=1, seconds=0.01)) in PAGE


def test_a_crowd_that_falls_behind_is_told_of_many_appends_at_once() -> None:
    """Fifty appends within a quarter of a second are one or two messages for each reader."""
    crowd = fanout(1, 40, appends=50, seconds=0.25)
    assert crowd.messages <= 3 * crowd.readers


def test_records_whose_readers_could_not_be_told_are_delivered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQS fails five times. All readers have read the append in the end: `fanout` asserts it."""
    send, failures = _Queues.send, [QueueUnavailable()] * 5

    def failing(queues: _Queues, url: str, bodies: Sequence[str]) -> None:
        if failures:
            raise failures.pop()
        send(queues, url, bodies)

    monkeypatch.setattr(_Queues, "send", failing)
    told = fanout(40, 1, appends=1, seconds=0.01)
    assert told.again > 0
    assert told.messages >= told.streams
    assert told.last_ms > 1000

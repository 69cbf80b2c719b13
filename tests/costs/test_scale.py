"""The model of a large system: the page shows its numbers, and it moves as it must."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scale import LARGE, Load, demand_of, quotas_of, render_all
from benchmarks.surge import line, surge

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()


@pytest.mark.parametrize("table", render_all(), ids=range(len(render_all())))
def test_the_page_has_the_models_numbers(table: str) -> None:
    assert f"\n{table}\n" in PAGE


def test_nothing_costs_nothing() -> None:
    idle = demand_of(Load(appends_per_second=0, waiting_readers=0))
    assert (idle.dollars, idle.write_units, idle.read_units, idle.queues) == (0, 0, 0, 0)


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

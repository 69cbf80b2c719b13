"""The model of a large system: the page shows its numbers, and it moves as it must."""

from pathlib import Path

import pytest

from benchmarks import scale
from benchmarks.fanout import fanout
from benchmarks.fanout import line as line_of_fanout
from benchmarks.surge import line, surge

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "internals" / "scale.md").read_text()


@pytest.mark.parametrize("table", scale.render_all(), ids=range(len(scale.render_all())))
def test_the_page_has_the_models_numbers(table: str) -> None:
    assert f"\n{table}\n" in PAGE


def test_the_page_says_from_when_on_an_event_stream_is_cheaper_than_a_socket() -> None:
    with_data = scale.event_stream_wins_from(scale.WAKE_UP)
    without = scale.event_stream_wins_from(scale.WAKE_UP + scale.READ)
    assert f"From {with_data:.1f} wake-ups a second on ({without:.1f} without data in the message)" in PAGE


def test_the_page_of_readers_says_what_a_thousand_of_one_stream_cost() -> None:
    assert f"\n{scale.render_crowd()}\n" in (DOCS / "operations" / "readers.md").read_text()


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

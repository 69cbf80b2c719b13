"""What is told of a stream, by how far its name's life had come when something was told last."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.registry import EndedStream, LiveStream, events_of, producer_of

OPEN = LiveStream("chat/42", "text/plain", created_ms=1_000)
CLOSED = LiveStream("chat/42", "text/plain", created_ms=1_000, closed_ms=1_500)
ENDED = EndedStream("chat/42", since_ms=2_000, reason="deleted")
#: By what was told last.
TOLD = {
    "nothing": None, "an earlier stream": 4 * 500 + 1, "an earlier stream, closed": 4 * 500 + 2,
    "an earlier end": 4 * 600 + 3, "that it replaces an earlier one": 4 * 1_000,
    "its creation": 4 * 1_000 + 1, "its closing": 4 * 1_000 + 2, "its end": 4 * 2_000 + 3,
    "a later stream": 4 * 3_000 + 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("told", "of_open", "of_closed", "of_ended"),
    [
        ("nothing", ["insert"], ["insert", "update"], ["delete"]),
        ("an earlier stream", ["delete", "insert"], ["delete", "insert", "update"], ["delete"]),
        ("an earlier stream, closed", ["delete", "insert"], ["delete", "insert", "update"], ["delete"]),
        ("an earlier end", ["insert"], ["insert", "update"], ["delete"]),
        ("that it replaces an earlier one", ["insert"], ["insert", "update"], ["delete"]),
        ("its creation", [], ["update"], ["delete"]),
        ("its closing", [], [], ["delete"]),
        ("its end", [], [], []),
        ("a later stream", [], [], []),
    ],
)
def test_what_is_still_to_be_told(
    told: str, of_open: list[str], of_closed: list[str], of_ended: list[str]
) -> None:
    for seen, expected in ((OPEN, of_open), (CLOSED, of_closed), (ENDED, of_ended)):
        events = events_of(seen, TOLD[told])
        assert [json.loads(event.body)["headers"]["operation"] for event in events] == expected


@given(st.sampled_from([OPEN, CLOSED, ENDED]), st.none() | st.integers(min_value=0, max_value=20_000))
def test_epochs_rise_and_nothing_is_told_again(seen: LiveStream | EndedStream, known: int | None) -> None:
    events = events_of(seen, known)
    epochs = [event.claim.epoch for event in events]
    assert epochs == sorted(set(epochs))
    assert all(known is None or epoch > known for epoch in epochs)
    if epochs:
        assert events_of(seen, epochs[-1]) == []


def test_a_stream_that_ends_when_it_was_created_is_told_in_order() -> None:
    """A creation is dated after the end before it, and may be as old as its own end."""
    created = events_of(CLOSED, None)
    ended = events_of(EndedStream("chat/42", since_ms=CLOSED.created_ms, reason=None), None)
    again = events_of(LiveStream("chat/42", "text/plain", CLOSED.created_ms + 1), None)
    epochs = [event.claim.epoch for event in (*created, *ended, *again)]
    assert epochs == sorted(set(epochs))


def test_the_longest_name_has_a_producer_id_of_its_own() -> None:
    assert len(producer_of("é" * 500)) <= 256
    assert producer_of("a") != producer_of("b")

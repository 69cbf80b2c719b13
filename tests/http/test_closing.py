"""Closing a stream that is closed already (§5.2, §5.2.1)."""

from __future__ import annotations

import pytest

from tests.http.asgi import Door

TEXT = {"Content-Type": "text/plain"}
CLOSE = {"Stream-Closed": "true"}


def producer(name: str, seq: int = 0) -> dict[str, str]:
    return {"Producer-Id": name, "Producer-Epoch": "0", "Producer-Seq": str(seq)}


@pytest.fixture
def closed(door: Door, path: str) -> str:
    """Closed by the producer `a`, which has appended once before."""
    assert door.put(path, TEXT).status == 201
    assert door.post(path, TEXT | producer("a"), b"x").status == 200
    assert door.post(path, CLOSE | producer("a", 1)).status == 204
    return path


def test_a_close_without_a_producer_may_be_repeated(door: Door, closed: str) -> None:
    for _ in range(2):
        again = door.post(closed, CLOSE)
        assert (again.status, again["Stream-Closed"]) == (204, "true")


def test_a_producer_may_repeat_its_own_close(door: Door, closed: str) -> None:
    again = door.post(closed, CLOSE | producer("a", 1))
    assert (again.status, again["Stream-Closed"]) == (204, "true")


@pytest.mark.parametrize("other", [producer("b"), producer("a", 0), producer("a", 2), producer("b", 7)])
def test_another_producers_close_gets_409_with_the_final_offset(
    door: Door, closed: str, other: dict[str, str]
) -> None:
    refused = door.post(closed, CLOSE | other)
    assert (refused.status, refused["Stream-Closed"]) == (409, "true")
    assert refused.next_offset == door.head(closed).next_offset

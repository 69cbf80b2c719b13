"""Buffered events when half a character has been written: the reader waits for the rest.

There is no text to send yet. A client that got a response at once would ask again at once, over and over,
while the other half is missing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from tests.lambdas.functions import Functions, http_event

pytestmark = pytest.mark.slow

EURO = "€".encode()
Open = Callable[[float], Functions]


@pytest.fixture
def waiting(functions: Functions) -> Iterator[Open]:
    """Functions that wait for a given time at the tail, over the same table."""
    opened: list[Functions] = []

    def start(seconds: float) -> Functions:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SSE_BUFFERED_SECONDS", str(seconds))
            opened.append(Functions())
            opened[-1].start()
        return opened[-1]

    assert functions.handlers, "the table's name is in the environment"
    yield start
    for each in opened:
        each.stop()


def write(functions: Functions, method: str, path: str, body: bytes) -> None:
    assert functions(http_event(method, path, headers={"content-type": "text/plain"}, body=body)).status < 300


def test_a_read_waits_for_the_rest_of_a_character(functions: Functions, waiting: Open, path: str) -> None:
    """As long as a reader at the tail waits; then the response names the same offset again."""
    write(functions, "PUT", path, b"10 " + EURO[:1])
    reader = waiting(0.5)
    began = time.monotonic()
    answer = reader(http_event("GET", path, "offset=0000000000000003&live=sse"))
    assert time.monotonic() - began >= 0.5
    assert [json.loads(event.data)["streamNextOffset"] for event in answer.events] == ["0000000000000003"]

"""Buffered events when half a character has been written: the reader waits for the rest.

There is no text to send yet. A client that got a response at once would ask again at once, over and over,
while the other half is missing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

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


def test_text_before_the_half_character_is_sent_at_once(
    functions: Functions, waiting: Open, path: str
) -> None:
    """The response does not wait: the client comes back for the rest."""
    write(functions, "PUT", path, b"10 " + EURO[:1])
    answer = waiting(600)(http_event("GET", path, "offset=-1&live=sse"))
    assert [event.data for event in answer.events if event.type == "data"] == ["10 "]


def test_the_rest_of_a_character_completes_it(functions: Functions, waiting: Open, path: str) -> None:
    """In this response or in the next one; from then on the offset is after it."""
    write(functions, "PUT", path, b"10 " + EURO[:1])
    reader, shown, offset = waiting(25), "", "0000000000000003"
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write, functions, "POST", path, EURO[1:] + b"!")
        while not shown:
            events = reader(http_event("GET", path, f"offset={offset}&live=sse")).events
            shown = "".join(event.data for event in events if event.type == "data")
            offset = json.loads(events[-1].data)["streamNextOffset"]
        written.result()
    assert (shown, offset) == ("€!", "0000000000000007")

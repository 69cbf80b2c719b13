"""The cost page says what the operations cost, and what the issue of it all may cost at most."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.costs import prices
from tests.costs.bill import Bill, item_bytes
from tests.costs.page import OPERATIONS, measure, notifier_dollars, render, render_append, request_dollars
from tests.support import make_world
from tidemark.local.engines import LocalServices

KILOBYTE_OF_JSON = "Append, 1,024 bytes of JSON"
PAGE = Path(__file__).parents[2] / "docs" / "costs.md"


@pytest.fixture(scope="module")
def bills(services: LocalServices) -> dict[str, Bill]:
    world = make_world(services)
    return {operation.title: measure(world, operation) for operation in OPERATIONS}


def test_the_page_says_what_was_measured(bills: dict[str, Bill]) -> None:
    """`python -m tests.costs` writes the tables anew."""
    text = PAGE.read_text()
    assert render(bills) in text
    assert render_append(bills[KILOBYTE_OF_JSON]) in text


def test_an_append_is_one_write(bills: dict[str, Bill]) -> None:
    """Of one billed kilobyte; a kilobyte of JSON is less than that once it is deflated."""
    for title in (
        "Append, 300 bytes",
        "Append, 300 bytes, by a producer",
        "Append, 800 bytes",
        KILOBYTE_OF_JSON,
    ):
        assert (dict(bills[title].calls), bills[title].write_units) == ({"PutItem": 1}, 1)


def test_an_append_of_a_kilobyte_is_cheap(bills: dict[str, Bill]) -> None:
    """All in, with a hundred appends to an invocation of the notifier."""
    dollars = bills[KILOBYTE_OF_JSON].storage_dollars + request_dollars() + notifier_dollars() / 100
    assert dollars < 2.10


def test_what_dynamodb_measures() -> None:
    """Names and values; a number takes a byte for every two digits, and one."""
    assert (
        item_bytes({"pk": {"S": "é"}, "b": {"B": "AAAA"}, "n": {"N": "1234"}, "t": {"BOOL": True}})
        == 4 + 4 + 5 + 2
    )
    assert prices.WRITE_UNIT == 5 * prices.READ_UNIT

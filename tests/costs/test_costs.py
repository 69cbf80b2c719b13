"""The cost page says what the operations cost, and what the issue of it all may cost at most."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.costs import prices
from tests.costs.bill import Bill, item_bytes
from tests.costs.memory import render_memory
from tests.costs.page import (
    OPERATIONS,
    default_dollars,
    direct_dollars,
    edge_out_dollars,
    function_dollars,
    measure,
    operation_named,
    render,
    render_append,
    render_choices,
    waking_dollars,
)
from tests.costs.waiting import WAIT_SECONDS, container_hour, function_hour, render_waiting
from tests.http.asgi import Answer, Door
from tests.infra.test_container import CHILD
from tests.infra.test_template import TEMPLATE
from tests.support import World, make_world
from tidemark.http.backend import one_at_a_time
from tidemark.local.engines import LocalServices
from tidemark.settings import Settings

KILOBYTE_OF_JSON = "Append, 1,024 bytes of JSON"
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "costs.md"


@pytest.fixture(scope="module")
def world(services: LocalServices) -> World:
    return make_world(services)


@pytest.fixture(scope="module")
def bills(world: World) -> dict[str, Bill]:
    return {operation.title: measure(world, operation) for operation in OPERATIONS}


def test_the_page_says_what_was_measured(bills: dict[str, Bill]) -> None:
    """`python -m tests.costs` writes the tables anew."""
    text = PAGE.read_text()
    assert render(bills) in text
    append, bill = operation_named(KILOBYTE_OF_JSON), bills[KILOBYTE_OF_JSON]
    assert render_append(append, bill) in text
    assert render_choices(append, bill) in text


def test_the_page_says_what_waiting_costs() -> None:
    assert render_waiting() in PAGE.read_text()


def test_in_the_container_a_waiting_reader_costs_a_tenth_from_twenty_readers_on() -> None:
    assert container_hour(20) / 20 < function_hour(1) / 10
    assert container_hour(1000) / 1000 < function_hour(1) / 100


def test_the_containers_price_is_that_of_its_template() -> None:
    task = CHILD["Resources"]["Task"]["Properties"]
    assert (task["Cpu"], task["Memory"]) == (
        str(round(prices.TASK_VCPU * 1024)),
        str(round(prices.TASK_GB * 1024)),
    )
    assert task["RuntimePlatform"]["CpuArchitecture"] == "ARM64"
    assert TEMPLATE["Parameters"]["SseSeconds"]["Default"] == WAIT_SECONDS


def test_the_page_says_why_functions_do_not_start_from_snapshots() -> None:
    """What they would cost: kept for thirty days for two functions, and by the cold start."""
    kept = 2 * prices.MEMORY_GB * 30 * 24 * 3600 * prices.SNAPSHOT_GB_SECOND
    resumed, started = prices.MEMORY_GB * prices.RESTORE_GB, prices.MEMORY_GB / 2 * prices.LAMBDA_GB_SECOND
    text = PAGE.read_text()
    assert f"${kept:.2f} a month for both functions" in text
    assert f"${resumed * 1e6:.0f} for a million cold starts, in place of ${started * 1e6:.2f}" in text


def test_every_other_page_says_the_same_price(bills: dict[str, Bill]) -> None:
    """Of a million appends, as deployed and by the API's URL."""
    append, bill = operation_named(KILOBYTE_OF_JSON), bills[KILOBYTE_OF_JSON]
    deployed, direct = f"${default_dollars(append, bill):.2f}", f"${direct_dollars(append, bill):.2f}"
    for page in ("README.md", "docs/costs.md"):
        text = (ROOT / page).read_text()
        assert deployed in text, page
        assert direct in text, page


def header_bytes(answer: Answer) -> int:
    """As HTTP/1.1 sends them, with the status line; with those that API Gateway adds."""
    gateway = {
        "date": "Sun, 22 Nov 2026 06:27:08 GMT",
        "connection": "keep-alive",
        "apigw-requestid": "x" * 16,
    }
    server_timing = {"server-timing": "storage;dur=10.93, total;dur=11.19"}
    lines = [f"{name}: {value}\r\n" for name, value in (answer.headers | gateway | server_timing).items()]
    return len("HTTP/1.1 204 No Content\r\n") + sum(map(len, lines)) + 2


def test_headers_are_as_long_as_the_bill_says(world: World) -> None:
    """Of an append by a producer, and of a read: what the application sends and what API Gateway adds."""
    stream, text = (
        "/v1/stream/chat/0f8fad5b-d9cb-469f-a165-70867728950e",
        {"Content-Type": "application/json"},
    )
    producer = {"Producer-Id": "writer-1", "Producer-Epoch": "0", "Producer-Seq": "0"}
    settings = Settings(world.table_name, world.bucket_name)
    with asyncio.Runner() as runner:
        door = Door(world.process(), one_at_a_time, runner, settings)
        door.put(stream, text)
        appended = header_bytes(door.post(stream, text | producer, b'{"a": 1}'))
        read = header_bytes(door.get(f"{stream}?offset=-1"))
        door.close()
    assert abs(appended - prices.WRITE_HEADER_BYTES) <= 60
    assert abs(read - prices.READ_HEADER_BYTES) <= 60


def test_the_page_says_what_the_price_by_cloudfront_consists_of(bills: dict[str, Bill]) -> None:
    append, bill = operation_named(KILOBYTE_OF_JSON), bills[KILOBYTE_OF_JSON]
    counted = prices.HTTP_API + prices.EDGE_REQUEST + prices.LAMBDA_REQUEST + bill.storage_dollars
    compute = function_dollars(append) - prices.LAMBDA_REQUEST
    below = counted + prices.EDGE_FUNCTION + compute + waking_dollars(append)
    carried = edge_out_dollars(append)
    assert below + carried == pytest.approx(default_dollars(append, bill))
    past_the_api = default_dollars(append, bill) - prices.HTTP_API
    said = (
        f"${counted:.3f} before",
        f"8 ms are ${compute:.3f}",
        f"${below:.3f}.",
        f"bytes, ${carried:.3f}:",
        f"costs nothing: ${past_the_api:.2f}.",
    )
    text = PAGE.read_text()
    assert [each for each in said if each not in text] == []


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
    """All in, bytes included, with five appends to an invocation of the notifier."""
    append, bill = operation_named(KILOBYTE_OF_JSON), bills[KILOBYTE_OF_JSON]
    assert direct_dollars(append, bill) < 2.10
    assert default_dollars(append, bill) < 3.20


def test_prices_are_of_what_the_template_deploys_by_default() -> None:
    """CloudFront in front and nothing past it, the memory, the levels of logs, the free key."""
    parameters = {name: each["Default"] for name, each in TEMPLATE["Parameters"].items()}
    assert parameters["MemorySize"] == prices.MEMORY_GB * 1024
    assert parameters["Edge"] == "true"
    assert (parameters["LogLevel"], parameters["Tracing"]) == ("WARNING", "Disabled")
    assert parameters["TableKey"] == "owned"


def test_what_dynamodb_measures() -> None:
    """Names and values; a number takes a byte for every two digits, and one."""
    assert (
        item_bytes({"pk": {"S": "é"}, "b": {"B": "AAAA"}, "n": {"N": "1234"}, "t": {"BOOL": True}})
        == 4 + 4 + 5 + 2
    )
    assert prices.WRITE_UNIT == 5 * prices.READ_UNIT


def test_the_page_has_the_classes_of_memory() -> None:
    assert render_memory() in PAGE.read_text()

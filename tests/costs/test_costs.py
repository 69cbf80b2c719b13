"""The cost page says what the operations cost, and what the issue of it all may cost at most."""

import asyncio
import math

import orjson

from benchmarks import prices
from tests.answers import Answer
from tests.costs import page
from tests.costs.conversations import Conversations, conversation_rows
from tests.http.asgi import Door
from tests.infra.test_container import CHILD
from tests.infra.test_template import ROOT, TEMPLATE
from tests.stack.dynamodb import item_size
from tests.support import World
from tidemark.client.watches import QUIET_SECONDS, SILENT_SECONDS
from tidemark.http.backend import lambda_backend
from tidemark.protocol.socket import MAX_LEASE_SECONDS
from tidemark.settings import Settings

PAGE = (ROOT / "docs" / "costs.md").read_text()


def test_the_page_has_the_rows_of_what_is_measured(world: World) -> None:
    """Where one is missing, this prints it as it is to be."""
    rows = (page.idle_row(world), *conversation_rows(world), *page.rows(world))
    assert [row for row in rows if row not in PAGE] == []
    proxy, tokens = (
        (ROOT / f"docs/guides/{name}.md").read_text() for name in ("durable-proxy", "llm-tokens")
    )
    assert f"two readers are ${Conversations(world).by_proxy():.2f} a thousand" in proxy
    few, some, many = (Conversations(world, count, count).by_sockets()[0] for count in (60, 150, 500))
    assert f"[${few:.2f} in place of ${many:.2f}]" in tokens
    assert f"(with 0.2 s: ${some:.2f})" in tokens


def test_most_of_a_waiting_sockets_price_are_pings() -> None:
    pings = page.CONNECTIONS_A_MONTH * 2 * page.PINGS * prices.SOCKET_MESSAGE / 1e6
    assert f"${pings:.3f} of that are pings" in PAGE


def test_a_client_pings_and_repeats_its_watches_as_often_as_the_bill_says() -> None:
    """A ping may be late by a minute, as in a tab in the background, before API Gateway ends the connection
    at ten."""
    assert 7200 // QUIET_SECONDS == page.PINGS
    assert 7200 // SILENT_SECONDS == page.HIDDEN_PINGS
    assert SILENT_SECONDS + 60 < 600
    assert math.ceil(7200 / (MAX_LEASE_SECONDS * 0.8)) == page.WATCHES


def test_an_append_of_a_kilobyte_is_cheap_and_every_page_says_the_same_price(world: World) -> None:
    """Of a million: all in, bytes included, with five appends to an invocation of the notifier."""
    [append] = [each for each in page.OPERATIONS if each.title == "Append, 1,024 bytes of JSON"]
    parts, direct = page.price(append, page.measure(world, append))
    assert f"{' + '.join(f'{part:.3f}' for part in parts)} = {sum(parts):.2f}" in PAGE
    assert direct < 2.10
    assert sum(parts) < 3.20
    for text in (PAGE, (ROOT / "README.md").read_text()):
        assert f"${sum(parts):.2f}" in text
        assert f"${direct:.2f}" in text
    alone = page.notifier_dollars() - parts[3]
    assert f"${sum(parts) + alone:.2f}, and {direct + alone:.2f} by the API's" in PAGE


def test_in_the_container_a_waiting_reader_costs_a_tenth_from_forty_readers_on() -> None:
    assert page.container_hour(40) / 40 < page.function_hour(1) / 10
    assert page.container_hour(1000) / 1000 < page.function_hour(1) / 100


def test_prices_are_of_what_the_templates_deploy_by_default() -> None:
    """CloudFront in front and nothing past it, the memory, the logs, the free key; the container."""
    parameters = {name: each["Default"] for name, each in TEMPLATE["Parameters"].items()}
    memory = (parameters["MemorySize"] / 1024, parameters["LiveMemory"] / 1024)
    assert memory == (prices.MEMORY_GB, prices.LIVE_GB)
    assert TEMPLATE["Resources"]["ProxyFunction"]["Properties"]["MemorySize"] == prices.PROXY_GB * 1024
    assert (parameters["Edge"], parameters["KeyArn"]) == ("true", "")
    assert parameters["LogLevel"] == "WARNING"
    assert parameters["SseSeconds"] == page.WAIT_SECONDS
    task = CHILD["Resources"]["Task"]["Properties"]
    assert (int(task["Cpu"]), int(task["Memory"])) == (prices.TASK_VCPU * 1024, prices.TASK_GB * 1024)
    assert task["RuntimePlatform"]["CpuArchitecture"] == "ARM64"


def header_bytes(answer: Answer) -> int:
    """As HTTP/1.1 sends them, with the status line; with those that API Gateway adds."""
    gateway = {
        "date": "Sun, 22 Nov 2026 06:27:08 GMT",
        "connection": "keep-alive",
        "apigw-requestid": "x" * 16,
        "server-timing": "storage;dur=10.93, total;dur=11.19",
    }
    lines = [f"{name}: {value}\r\n" for name, value in (answer.headers | gateway).items()]
    return len("HTTP/1.1 204 No Content\r\n") + sum(map(len, lines)) + 2


def test_headers_are_as_long_as_the_bill_says(world: World) -> None:
    """Of an append by a producer and of a read, as the application and API Gateway send them; and a listed
    stream."""
    stream, text = (
        "/v1/stream/chat/0f8fad5b-d9cb-469f-a165-70867728950e",
        {"Content-Type": "application/json"},
    )
    producer = {"Producer-Id": "writer-1", "Producer-Epoch": "0", "Producer-Seq": "0"}
    with asyncio.Runner() as runner:
        settings = Settings(world.table_name, world.bucket_name)
        door = Door(world.process(), lambda_backend, runner, settings)
        door.put(stream, text)
        appended = header_bytes(door.post(stream, text | producer, b'{"a": 1}'))
        read = header_bytes(door.get(f"{stream}?offset=-1"))
        [listed] = door.get(f"/v1/streams?prefix={page.NAME}&limit=1").json["streams"]
        door.close()
    assert abs(appended - prices.WRITE_HEADER_BYTES) <= 60
    assert abs(read - prices.READ_HEADER_BYTES) <= 60
    assert abs(len(orjson.dumps(listed)) - prices.LISTED_BYTES) <= 30


def test_what_dynamodb_measures() -> None:
    """Names and values; a number takes a byte for every two digits, and one."""
    item = {"pk": {"S": "é"}, "b": {"B": "AAAA"}, "n": {"N": "1234"}, "t": {"BOOL": True}}
    assert item_size(item) == 4 + 4 + 4 + 2
    assert prices.WRITE_UNIT == 5 * prices.READ_UNIT

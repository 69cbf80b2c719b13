"""The page of costs states what somebody can cost in a day, and which parameter bounds it."""

import asyncio
import re
from collections import Counter
from dataclasses import astuple

from benchmarks import abuse, prices
from tests.costs.bill import Bill
from tests.costs.test_costs import PAGE, header_bytes
from tests.http.asgi import Door
from tests.infra.test_template import TEMPLATE
from tests.support import World
from tidemark.http.backend import lambda_backend
from tidemark.settings import AuthorizationSettings, Settings


def test_the_page_has_the_rows_of_what_somebody_can_cost_in_a_day(world: World) -> None:
    """If one is missing, this prints it as it should be. The price of a delivery is the page's own."""
    delivery = re.search(
        r"\| Delivery by a webhook .* \*\*(\d+)\*\* \| \| (\d+) / (\d+) \| at most (\d+)", PAGE
    )
    assert delivery is not None
    dollars, written, read, calls = map(int, delivery.groups())
    rows = list(abuse.rows(world, Bill(Counter(calls=calls), written, read), dollars))
    assert [row for row in rows if f"{row}\n" not in PAGE] == []
    assert [text for text in abuse.beside_all_settings() if text not in PAGE] == []


def test_every_bound_is_a_parameter_and_the_page_names_its_values() -> None:
    requests, environments, writers, _, units = astuple(abuse.BOUNDED)
    bounds = {
        "RequestsPerSecond": requests,
        "ReaderConcurrency": environments,
        "WriterConcurrency": writers,
        "TableUnitsPerSecond": units,
    }
    assert f"`{' '.join(f'{name}={value}' for name, value in bounds.items())}`" in PAGE
    rows = PAGE.partition("## A day of abuse")[2].splitlines()
    named = {name for row in rows if "|" in row for name in re.findall(r"`([A-Z][a-z]\w+)`", row)}
    assert (
        bounds.keys() | {"ProxyConcurrency", "Sockets"}
        == named - {"WriterUrl"}
        <= TEMPLATE["Parameters"].keys()
    )


def test_a_refusal_is_as_long_as_the_bill_has_it_and_calls_no_storage(world: World) -> None:
    settings = Settings(authorization=AuthorizationSettings(secret="s" * 32))
    process = world.process()
    with asyncio.Runner() as runner:
        door = Door(process, lambda_backend, runner, settings)
        refused = [door.get(f"/v1/stream/a?offset=-1{wait}") for wait in ("", "&live=sse")]
        door.close()
    assert process.calls.taken() == {}
    for answer in refused:
        assert (answer.status, len(answer.body)) == (401, abuse.REFUSAL.received)
        assert abs(header_bytes(answer) - prices.READ_HEADER_BYTES) <= 120

"""The cost of a day in which a client sends requests without a pause: a table of `docs/costs.md`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks import prices
from tests.costs import page
from tests.costs.bill import Bill
from tests.costs.page import Operation, append_of, compute_dollars, gigabyte_seconds, measure, random_bytes
from tests.infra.test_template import FUNCTIONS, ROUTES, TEMPLATE
from tests.support import World
from tidemark.http.requests import MAX_BODY_BYTES
from tidemark.protocol.socket import MAX_NAMED
from tidemark.service.append import INLINE_BYTES


@dataclass(frozen=True)
class Bounds:
    """Requests a second; environments for waits, `WriterUrl` and the proxy; the table's units a second."""

    requests: float
    environments: float
    writers: float
    proxies: float
    units: float


_DEFAULTS: Final = {name: each.get("Default") for name, each in TEMPLATE["Parameters"].items()}
#: The template's defaults, and the quotas of AWS for an account and for a table.
DEPLOYED: Final = Bounds(_DEFAULTS["RequestsPerSecond"], 1000, 0, _DEFAULTS["ProxyConcurrency"], 40_000)
#: As the page names them.
BOUNDED: Final = Bounds(100, 50, 50, _DEFAULTS["ProxyConcurrency"], 1000)
#: API Gateway's quotas: requests a second of an account, new sockets a second, minutes of a silent socket.
ACCOUNT_REQUESTS, NEW_SOCKETS, SILENT_MINUTES = 10_000, 500, 10
SOCKET_ROUTES: Final = sum(
    each["Type"] == "AWS::ApiGatewayV2::Route" for each in TEMPLATE["Resources"].values()
)
#: Requests that Lambda begins in a second, for each environment that a function may have.
STARTS: Final = 10
#: A call of a webhook, and a call of storage.
WEBHOOK_SECONDS, CALL_SECONDS = 0.050, 0.005
GBIT_GB_A_DAY: Final = 86_400 / 8

REFUSAL: Final = Operation("Refusal", lambda *_: None, received=36)
LARGE: Final = append_of(random_bytes(INLINE_BYTES), "Append, 64 KB")
LARGEST: Final = append_of(random_bytes(MAX_BODY_BYTES), "Append, 4 MB")

Cost = Callable[[Bounds], float]
"""Dollars of a day."""


def a_day(per_second: float, dollars: float) -> float:
    """`dollars` are of a million."""
    return per_second * 86_400 * dollars / 1e6


def flood(bill: Bill, dollars: float, refused: float, rate: Cost) -> Cost:
    """Requests at this rate. The table refuses those for which it has no units."""
    units = max(bill.write_units, bill.read_units)

    def cost(bounds: Bounds) -> float:
        served = min(rate(bounds), bounds.units / units)
        return a_day(served, dollars) + a_day(rate(bounds) - served, refused)

    return cost


def by_api(world: World, operation: Operation) -> Cost:
    bill = measure(world, operation)
    return flood(bill, sum(page.price(operation, bill)[0]), api_refusal(), lambda to: to.requests)


def api_refusal() -> float:
    return sum(page.price(REFUSAL, Bill())[0])


def edge_refusal() -> float:
    """CloudFront's part."""
    return sum(page.price(REFUSAL, Bill())[0][-2:])


def api_refusals(bounds: Bounds) -> float:
    return a_day(min(len(ROUTES) * bounds.requests, ACCOUNT_REQUESTS), api_refusal())


def live_refusals(bounds: Bounds) -> float:
    function = compute_dollars(prices.REQUEST_SECONDS, prices.LIVE_GB)
    return a_day(STARTS * bounds.environments, edge_refusal() + function)


def live_reads(bounds: Bounds) -> float:
    """Ten thousand reads a second use up the table's units."""
    return live_refusals(bounds) + a_day(bounds.units, prices.READ_UNIT)


def writer_refusals(bounds: Bounds) -> float:
    out = (prices.WRITE_HEADER_BYTES + REFUSAL.received) * prices.REGION_OUT_GB / 1000
    return a_day(STARTS * bounds.writers, compute_dollars(prices.REQUEST_SECONDS) + out)


def sockets(bounds: Bounds) -> float:
    """Messages of the largest size, by each route. A message keeps one socket open. API Gateway answers pings
    without a function."""
    messages = SOCKET_ROUTES * bounds.requests
    parts = prices.SOCKET_MESSAGE_BYTES // prices.SOCKET_PART_BYTES + 1
    minutes = (NEW_SOCKETS + messages) * SILENT_MINUTES
    return (
        a_day(messages, parts * prices.SOCKET_MESSAGE)
        + a_day(bounds.requests, compute_dollars(prices.REQUEST_SECONDS))
        + a_day(minutes, prices.SOCKET_MINUTE)
    )


def watches(world: World) -> Cost:
    counted = page.measure_watches(world, MAX_NAMED)
    watch = Bill(Counter(), counted.write_units // page.WATCHES, counted.read_units // page.WATCHES)
    message = 2 * prices.SOCKET_MESSAGE + compute_dollars(page.WATCH_SECONDS)
    return flood(watch, message + watch.storage_dollars, message, lambda to: to.requests)


def deliveries(delivery: Bill, dollars: float) -> Cost:
    """As many at once as the trigger allows."""
    [attend] = (each["Properties"] for each in FUNCTIONS["SubscriptionsFunction"]["Events"].values())
    at_once = attend["BatchSize"] * attend["ScalingConfig"]["MaximumConcurrency"]
    seconds = WEBHOOK_SECONDS + delivery.calls.total() * CALL_SECONDS
    return flood(delivery, dollars, 0, lambda _: at_once / seconds)


def pipes(bounds: Bounds) -> float:
    """Upstreams answer as fast as the table takes it, by 64 KB in an append. Two functions wait for each."""
    return a_day(2 * bounds.proxies, gigabyte_seconds(prices.PROXY_GB)) + a_day(
        bounds.units, prices.WRITE_UNIT
    )


def rows(world: World, delivery: Bill, delivery_dollars: float) -> Iterator[str]:
    """As `docs/costs.md` has them."""
    [listing] = [each for each in page.OPERATIONS if each.title.startswith("List")]
    rate, live, units = "`RequestsPerSecond`", "`ReaderConcurrency`", "`TableUnitsPerSecond`"
    loads: tuple[tuple[str, Cost, str], ...] = (
        (f"No token: {len(ROUTES)} routes of the API", api_refusals, rate),
        ("No token: `GET` with `live`", live_refusals, live),
        ("No token: `WriterUrl`", writer_refusals, "`WriterConcurrency`"),
        ("No token: new sockets, messages of 128 KB", sockets, f"{rate}, `Sockets`"),
        ("`read`: listings", by_api(world, listing), f"{rate}, {units}"),
        ("`read`: `GET` with `live`", live_reads, f"{live}, {units}"),
        ("`read`: waiting", lambda to: 24 * page.function_hour(1) * to.environments, live),
        (f"`read`: watches of {MAX_NAMED} streams", watches(world), f"{rate}, {units}"),
        ("`write`: appends of 64 KB", by_api(world, LARGE), f"{rate}, {units}"),
        ("`write`: appends of 4 MB (34 Gbit/s)", by_api(world, LARGEST), rate),
        ("`manage`: subscriptions with news", deliveries(delivery, delivery_dollars), units),
        ("`proxy`: large answers", pipes, f"`ProxyConcurrency`, {units}"),
    )
    for title, cost, settings in loads:
        yield f"| {title} | **{cost(DEPLOYED):,.0f}** | {cost(BOUNDED):,.0f} | {settings} |"


def beside_all_settings() -> Iterator[str]:
    """Sentences of the page."""
    passed, blocked = (a_day(10_000, each) for each in (edge_refusal(), prices.FIREWALL_REQUEST))
    yield f"each 10,000 a second are ${passed:,.0f}, or ${blocked:,.0f} where WAF blocks them"
    edge, region = (GBIT_GB_A_DAY * each for each in (prices.EDGE_OUT_GB, prices.REGION_OUT_GB))
    yield f"each Gbit/s is ${edge:,.0f}, or ${region:,.0f} from S3"
    stored = DEPLOYED.requests * 86_400 * MAX_BODY_BYTES / 1e9 * prices.S3_GB_MONTH
    yield f"a day of 4 MB appends is ${stored:,.0f} a month"

"""What waiting readers cost by the hour: an environment of Lambda for each, or one container for all."""

from __future__ import annotations

from tests.costs import prices

CROWDS = (1, 10, 100, 1000)
HOURS_A_MONTH = 730
#: An event stream lasts so long, then its reader comes again (`SSE_SECONDS`).
WAIT_SECONDS = 55


def function_hour(readers: int) -> float:
    """Dollars. The requests through CloudFront are in both."""
    memory = 3600 * prices.MEMORY_GB * prices.LAMBDA_GB_SECOND
    return readers * (memory + waits_an_hour() * (prices.LAMBDA_REQUEST + edge_request()) / 1e6)


def container_hour(readers: int) -> float:
    """Dollars, of one task (`container/template.yaml`)."""
    task = prices.TASK_VCPU * prices.FARGATE_VCPU_HOUR + prices.TASK_GB * prices.FARGATE_GB_HOUR
    balancer = prices.BALANCER_HOUR + balancer_units(readers) * prices.BALANCER_UNIT_HOUR
    return task + prices.ADDRESS_HOUR + balancer + readers * waits_an_hour() * edge_request() / 1e6


def balancer_units(readers: int) -> float:
    """The larger of what it holds and of what arrives in a second; bytes are few."""
    return max(readers / 3000, readers / WAIT_SECONDS / 25)


def waits_an_hour() -> float:
    return 3600 / WAIT_SECONDS


def edge_request() -> float:
    """Per million."""
    return prices.EDGE_REQUEST + prices.EDGE_FUNCTION


def render_waiting() -> str:
    columns = "a function for each, $ a month | one container, $ a month | a reader in it, $ an hour"
    lines = [f"| readers that wait all the time | {columns} |", "| ---: | ---: | ---: | ---: |"]
    for readers in CROWDS:
        function, container = function_hour(readers), container_hour(readers)
        lines.append(
            f"| {readers:,} | {function * HOURS_A_MONTH:,.2f} | {container * HOURS_A_MONTH:.2f} "
            f"| {container / readers:.5f} |"
        )
    return "\n".join(lines)

"""`python -m tests.costs`: measures, and prints the tables of `docs/costs.md`."""

from __future__ import annotations

import os
import sys

from tests.costs.memory import render_memory
from tests.costs.page import (
    OPERATIONS,
    measure,
    operation_named,
    render,
    render_append,
    render_choices,
)
from tests.costs.waiting import render_waiting
from tests.support import make_world
from tidemark.local.engines import LocalServices


def main() -> int:
    with LocalServices(in_memory=True) as services:
        os.environ.update(services.environment)
        world = make_world(services)
        bills = {operation.title: measure(world, operation) for operation in OPERATIONS}
    append = operation_named("Append, 1,024 bytes of JSON")
    bill = bills[append.title]
    tables = render(bills), render_append(append, bill), render_choices(append, bill), render_waiting()
    print(*tables, render_memory(), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

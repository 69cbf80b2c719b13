"""`python -m tests.costs`: measures, and prints the rows of `docs/costs.md`."""

from __future__ import annotations

import os

from tests.costs.page import measure_all, measure_sockets, rows
from tests.support import make_world
from tidemark.local.engines import LocalServices

if __name__ == "__main__":
    with LocalServices() as services:
        os.environ.update(services.environment)
        world = make_world(services)
        print(*rows(measure_all(world), measure_sockets(world)), sep="\n")

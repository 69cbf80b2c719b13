"""`python -m tests.costs`: measures, and prints the rows of `docs/costs.md`."""

from __future__ import annotations

import os

from tests.costs.page import measure_all, rows
from tests.support import make_world
from tidemark.local.engines import LocalServices

if __name__ == "__main__":
    with LocalServices() as services:
        os.environ.update(services.environment)
        print(*rows(measure_all(make_world(services))), sep="\n")

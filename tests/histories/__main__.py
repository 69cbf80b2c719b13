"""`python -m tests.histories --histories 10000 --seed S`: record and check so many. A seed chooses the
requests and the faults; how the threads interleave is theirs, so a history that is wrong is printed
whole."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections import Counter

from tests.histories.servers import KINDS_TO_ASK_FOR, Servers
from tidemark.local.engines import LocalServices


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories")
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="of the first one")
    parser.add_argument("--kind", choices=KINDS_TO_ASK_FOR, help="by default each seed chooses")
    parser.add_argument("--combines", action="store_true", help="every single append is posted as mail")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    started, failed, totals = time.monotonic(), 0, Counter[str]()
    with LocalServices(in_memory=True) as services:
        os.environ.update(services.environment)
        servers = Servers(services)
        for index in range(asked.histories):
            recorded = servers.record(asked.seed + index, asked.kind, combines=asked.combines)
            totals["operations"] += len(recorded.history)
            totals["unknown"] += sum(operation.answer is None for operation in recorded.history)
            if recorded.problems:
                failed += 1
                print(f"--- seed {recorded.seed} ({recorded.kind})", *recorded.problems, sep="\n", flush=True)
            if index % 100 == 99:
                elapsed = time.monotonic() - started
                print(f"{index + 1} histories in {elapsed:.0f} s, {failed} of them wrong", flush=True)
    elapsed = time.monotonic() - started
    print(
        f"{asked.histories} histories from seed {asked.seed} in {elapsed:.0f} s: {failed} wrong; "
        f"{dict(totals | servers.faults)}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.fuzz --requests 100000`: as many requests as it is told to, a third of each kind."""

import argparse
import os
import secrets
import sys
import time

from tests.fuzz.session import fuzz_events, fuzz_frames, fuzz_published
from tests.stack.engines import LocalServices

#: A table of its own for so many requests, so that storage does not grow without end.
ROUND = 5000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    started, done = time.monotonic(), 0
    with LocalServices() as services:
        os.environ.update(services.environment)
        while done < asked.requests:
            third = min(ROUND, asked.requests - done) // 3
            for fuzz in (fuzz_published, fuzz_events, fuzz_frames):
                subject = fuzz(services, third, asked.seed + done)
                done += subject.statuses.total()
                counts = sorted(subject.statuses.items())
                statuses = ", ".join(f"{status}: {count}" for status, count in counts)
                elapsed = time.monotonic() - started
                print(f"{done} requests in {elapsed:.0f} s; {fuzz.__name__}: {statuses}", flush=True)
                print(f"{subject.packs} packs were made", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

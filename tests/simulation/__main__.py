"""`python -m tests.simulation --seeds 10000`: that many runs; `--seed S --seeds 1` plays one of them
again."""

import argparse
import secrets
import sys
import time
from collections import Counter

from tests.histories.workload import FIRST_APPENDS, PRODUCERS, RETENTION, WEIGHTS
from tests.simulation.faults import FAULTS
from tests.simulation.run import run_seed
from tests.simulation.world import LATEST_ARRIVAL_MS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="the first one")
    parser.add_argument(
        "--kind", choices=[*WEIGHTS, PRODUCERS, RETENTION, FIRST_APPENDS], help="by default each seed chooses"
    )
    parser.add_argument("--latest-minutes", type=float, default=LATEST_ARRIVAL_MS / 60_000)
    parser.add_argument(
        "--without", nargs="*", choices=[*FAULTS, "late"], default=[], help="faults to leave out"
    )
    parser.add_argument("--combines", action="store_true", help="every single append is posted as mail")
    parser.add_argument(
        "--impatient", action="store_true", help="clients give up, and producers repeat elsewhere"
    )
    parser.add_argument("--stop", action="store_true", help="at the first problem")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    started, totals, failed = time.monotonic(), Counter[str](), 0
    for seed in range(asked.seed, asked.seed + asked.seeds):
        run = run_seed(
            seed,
            asked.kind,
            without=asked.without,
            latest_arrival_ms=round(asked.latest_minutes * 60_000),
            combines=asked.combines,
            impatient=asked.impatient,
        )
        totals.update(operations=len(run.history), calls=run.calls, **run.faults)
        totals["undecided"] += run.is_undecided
        totals["unknown"] += sum(operation.answer is None for operation in run.history)
        if run.problems:
            failed += 1
            print(f"--- seed {seed} ({run.kind})", *run.problems, sep="\n", flush=True)
            if asked.stop:
                break
    elapsed = time.monotonic() - started
    print(f"{asked.seeds} seeds from {asked.seed} in {elapsed:.0f} s, {failed} with problems; {dict(totals)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.chaos`: environment MINUTES (2), SEED (a new one), VIA (asgi), APPENDS; or options."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.chaos.campaign import Campaign, Wish
from tests.chaos.disk import open_disk
from tests.chaos.report import final_table, keep, verdict_line, violation_lines


def main() -> int:
    wish = _wish()
    folder = Path(tempfile.mkdtemp(prefix="tidemark-chaos-"))
    disk = open_disk(folder / "disk")
    _say(f"seed {wish.seed}, VIA={wish.via}, folder {folder}")
    if disk.lacking is not None:
        _say(f"SKIPPED: the disk is never full, because {disk.lacking}")
    campaign = Campaign(wish, folder, disk, _say)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            violations = runner.run(campaign.run())
    finally:
        disk.close()
    scene, totals = campaign.scene, campaign.totals_under_fire
    _say(final_table(totals, campaign.faults, scene.recordings, violations))
    for line in violation_lines(violations):
        _say(line)
    if violations:
        keep(folder, scene.recordings, campaign.system.events, violations, campaign.began)
        _say(f"recordings, faults and logs are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    _say(verdict_line(totals.acknowledged, violations))
    _say(f"seed {wish.seed}: {'FAILED' if violations else 'passed'}")
    return 1 if violations else 0


def _wish() -> Wish:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("MINUTES") or 2))
    parser.add_argument("--appends", type=int, default=int(os.environ.get("APPENDS") or 0))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED") or secrets.randbelow(2**31)))
    parser.add_argument("--via", choices=("asgi", "lambda"), default=os.environ.get("VIA") or "asgi")
    asked = parser.parse_args()
    return Wish(asked.seed, asked.via, asked.minutes, asked.appends or None)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

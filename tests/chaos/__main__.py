"""`python -m tests.chaos`: environment MINUTES (2), SEED (a new one), VIA (asgi), APPENDS; or options."""

import argparse
import asyncio
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.chaos.campaign import Campaign, Wish
from tests.chaos.disk import open_disk
from tests.chaos.recording import Violation
from tests.chaos.report import final_table, keep, verdict_lines
from tidemark.client import watches


def main() -> int:
    """0 where nothing is wrong, 1 where something is, 2 where the campaign cannot run here."""
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    logging.getLogger("tidemark.client").setLevel(logging.ERROR)  # It tells what it tries again.
    # A socket that failed is opened again soon: else its readers would wait otherwise for most of a campaign.
    setattr(watches, "_LONGEST_PAUSE_SECONDS", 2.0)  # noqa: B010 - final for the program
    wish = _wish()
    folder = Path(tempfile.mkdtemp(prefix="tidemark-chaos-"))
    disk = open_disk(folder / "disk")
    _say(f"seed {wish.seed}, VIA={wish.via}, folder {folder}")
    if disk.lacking is not None:
        _say(f"SKIPPED: the disk is never full, because {disk.lacking}")
    try:
        has_passed = _run(Campaign(wish, folder, disk, _say))
    finally:
        disk.close()
    if has_passed:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        _say(f"recordings, faults, logs and the table are in {folder}")
    _say(f"seed {wish.seed}: {'passed' if has_passed else 'FAILED'}")
    return 0 if has_passed else 1


def _run(campaign: Campaign) -> bool:
    """Whether nothing is wrong. The loop is not closed: that would wait for whatever does not end."""
    violations = asyncio.Runner(loop_factory=uvloop.new_event_loop).run(campaign.run())
    _tell(campaign, violations)
    return not violations


def _tell(campaign: Campaign, violations: list[Violation]) -> None:
    """What came of it. What is needed to find out why is kept where something is wrong."""
    recordings = campaign.scene.recordings
    _say(final_table(campaign.totals, campaign.faults, recordings, violations))
    _say(f"packs in the end: {campaign.packs}; streams that were compacted: {len(campaign.scene.compacted)}")
    answers = (f"{name} × {count}" for name, count in sorted(campaign.scene.counts.items()))
    _say(f"answers: {', '.join(answers)}")
    if violations:
        keep(campaign.folder, recordings, campaign.system.events, violations, campaign.began)
        for part in campaign.disk.path.glob("data/**/tidemark.db*"):
            shutil.copy(part, campaign.folder)
    for line in verdict_lines(campaign.totals.acknowledged, violations):
        _say(line)


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
    code = main()
    sys.stderr.flush()
    os._exit(code)  # Without waiting for threads that do not end either.

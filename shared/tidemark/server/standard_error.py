"""Reports of the local server on standard error. Each report is one write: several threads report, and their
lines must not come into the middle of a traceback."""

from __future__ import annotations

import sys
import traceback


def report(text: str) -> None:
    """A line, or several; the last newline is added."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def report_failure(error: BaseException) -> None:
    """With its traceback, and those of its causes."""
    report("".join(traceback.format_exception(error)).rstrip("\n"))

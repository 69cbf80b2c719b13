"""How far a long command is, for whoever sits at a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar


def progress_bar(total: int, unit: str) -> ProgressBar[int]:
    """On the standard error, so that the output stays what it is in a pipe. Hidden where that is no terminal,
    and where the total is not known (0)."""
    is_hidden = not total or not sys.stderr.isatty()
    return click.progressbar(length=total, label=unit, file=sys.stderr, show_pos=True, hidden=is_hidden)

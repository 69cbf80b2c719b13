"""Tools for operators of a deployed stack."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar


def progress_bar(total: int, unit: str) -> ProgressBar[int]:
    """On standard error, so that it does not mix with piped output. Hidden if that is not a terminal, or if
    the total is not known (0)."""
    is_hidden = not total or not sys.stderr.isatty()
    return click.progressbar(length=total, label=unit, file=sys.stderr, show_pos=True, hidden=is_hidden)

"""Retention: which part of a stream may be let go of (docs/retention.md)."""

from __future__ import annotations

from collections.abc import Iterable


def contiguous_end(begin: int, stretches: Iterable[tuple[int, int]]) -> int:
    """How far the stretches go on from `begin` without a gap; `begin` itself where none of them holds it.
    A stretch is from its first offset up to its second one; they may overlap, and come in any order."""
    reached = begin
    for start, end in sorted(stretches):
        if start > reached:
            break
        reached = max(reached, end)
    return reached

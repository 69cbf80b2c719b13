"""Filters on `stream` decide which streams are read at all (Spark 4.1 and newer)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidemark.spark.options import ReadOptions


@dataclass
class Narrowing:
    """The streams that filters leave; None is all of them."""

    names: frozenset[str] | None = None

    def take(self, filters: Iterable[Any]) -> Iterable[Any]:
        """Keeps what it understands and gives back the rest, which Spark then evaluates."""
        for each in filters:
            wanted = _names_in(each)
            if wanted is None:
                yield each
            else:
                self.names = wanted if self.names is None else self.names & wanted

    def apply(self, options: ReadOptions) -> ReadOptions | None:
        """The options for the streams that are left, or None where none is."""
        if self.names is None:
            return options
        if options.pattern is not None:
            names = sorted(name for name in self.names if re.fullmatch(options.pattern, name))
            # A stream that a pattern may find need not exist.
            narrowed = "|".join(map(re.escape, names))
            return dataclasses.replace(options, pattern=narrowed) if names else None
        names = [name for name in options.names if name in self.names]
        return dataclasses.replace(options, names=tuple(names)) if names else None


def _names_in(condition: Any) -> frozenset[str] | None:
    kind = type(condition).__name__
    if getattr(condition, "attribute", None) != ("stream",):
        return None
    if kind == "EqualTo" and isinstance(condition.value, str):
        return frozenset({condition.value})
    if kind == "In" and all(isinstance(value, str) for value in condition.value):
        return frozenset(condition.value)
    return None

"""The options of one read or write, whichever way their names are written, and all that is wrong with them.

Spark hands options on with their names in lower case. Every fault is named at once, not the first
one alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from tidemark.protocol.errors import Malformed

T = TypeVar("T")

MEGABYTE: Final = 1024 * 1024
_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
#: Spark's own, which reach every source and sink.
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "path", "mergeschema"})


class InvalidOptions(ValueError):
    """All that is wrong with the options of one read or write."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("tidemark: " + "; ".join(faults))


class GivenOptions:
    """The given options, whose names are case-insensitive, and the faults found in them."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): str(value) for name, value in dict(given).items()}
        self.faults: list[str] = []
        by_lower = {name.lower(): name for name in known}
        for name in sorted(self._given.keys() - by_lower.keys() - SPARKS_OWN):
            near = difflib.get_close_matches(name, by_lower, n=1)
            hint = f"did you mean {by_lower[near[0]]}?" if near else f"known: {', '.join(known)}"
            self.faults.append(f"unknown option {name} ({hint})")

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._given.get(name.lower()) or default

    def parse(self, name: str, default: T, parse: Callable[[str], T]) -> T:
        text = self.text(name)
        if text is None:
            return default
        try:
            return parse(text)
        except (ValueError, Malformed) as fault:
            self.faults.append(f"{name}: {fault}")
            return default

    def finish(self) -> None:
        if self.faults:
            raise InvalidOptions(self.faults)


def parse_size(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise ValueError(f"must be a whole number of bytes above 0, got {text!r}")
    return int(text)


def parse_seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"must be a whole number of seconds, got {text!r}")
    return int(text)


def parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise ValueError(f"must be a whole number of messages above 0, got {text!r}")
    return int(text)


def parse_duration(text: str) -> float:
    """In seconds. As Spark writes durations: 500ms, 30s, 15m, 2h, 1d."""
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h|d)", text.strip().lower(), re.ASCII)
    if found is None:
        raise ValueError(f"must be a duration such as 30s or 15m, got {text!r}")
    return int(found[1]) * _UNIT_SECONDS[found[2]]


def parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"must be true or false, got {text!r}")
    return text.lower() == "true"

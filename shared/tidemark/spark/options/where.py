"""The bounds of a read: an offset, or the first message from a time on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from tidemark.spark.options.given import GivenOptions


@dataclass(frozen=True)
class Latest:
    """The tail at the time of asking."""


@dataclass(frozen=True)
class Earliest:
    """The first message that is retained."""


@dataclass(frozen=True)
class AtTime:
    """The first message that was written at this time or later; the tail where there is none."""

    ms: int


Where = Latest | Earliest | AtTime | Mapping[str, str | AtTime]
"""For every stream alike, or for each its own: `earliest`, `latest`, an offset or a time."""

Side = Literal["starting", "ending"]
SIDES: Final[tuple[Side, ...]] = ("starting", "ending")

WHERE_OPTIONS: Final = (
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
)


def parse_boundary(asked: GivenOptions, side: Side, default: Where) -> Where:
    """Parse the options of one side (`starting`, `ending`)."""
    options = given_boundaries(asked, side)
    if len(options) > 1:
        asked.faults.append(f"give one of {', '.join(options)}: each says where every stream is {side}")
    offsets = asked.parse(f"{side}Offsets", default, parse_where)
    by_stream = asked.parse(f"{side}OffsetsByTimestamp", offsets, parse_times)
    return asked.parse(f"{side}Timestamp", by_stream, parse_time)


def given_boundaries(asked: GivenOptions, side: Side) -> list[str]:
    return [option for option in WHERE_OPTIONS if option.startswith(side) and asked.has(option)]


def parse_where(text: str) -> Where:
    """`earliest`, `latest`, or JSON such as `{"chat": "0000000000000042", "log": "earliest"}`."""
    lowered = text.strip().lower()
    if lowered in ("earliest", "latest"):
        return Earliest() if lowered == "earliest" else Latest()
    given = _parse_object(text, "must be earliest, latest or a JSON object of stream to offset")
    for name, offset in given.items():
        if not isinstance(offset, str) or not offset:
            raise ValueError(f"the offset of {name} must be text, as the server gave it, got {offset!r}")
    return given


def parse_times(text: str) -> Mapping[str, AtTime]:
    """JSON such as `{"chat": 1700000000000, "log": "2026-11-21T10:00Z"}`."""
    given = _parse_object(text, "must be a JSON object of stream to time")
    return {name: parse_time(str(time)) for name, time in given.items()}


def parse_time(text: str) -> AtTime:
    """Milliseconds since 1970, as Spark's Kafka source takes them, or RFC 3339 with an offset from UTC."""
    if text.isascii() and text.isdigit():
        return AtTime(int(text))
    wanted = "must be milliseconds since 1970 or a time with its zone such as 2026-11-21T10:00Z"
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{wanted}, got {text!r}") from None
    if instant.tzinfo is None:
        raise ValueError(f"{wanted}, got {text!r}, which has no zone")
    return AtTime(round(instant.timestamp() * 1000))


def _parse_object(text: str, wanted: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except ValueError as fault:
        raise ValueError(f"{wanted}, got {text!r} ({fault})") from None
    if not isinstance(given, dict) or not given:
        raise ValueError(f"{wanted}, got {text!r}")
    return given

"""EventBridge's patterns, which filter an event source mapping's records: as much as the template uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class UnknownPattern(ValueError):
    """The pattern says something that is not understood here; the message shows it."""


def matches(pattern: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    """Every key of the pattern is in the event, with one of the values that its list allows.

    Raises UnknownPattern.
    """
    return all(key in event and _matches_value(wanted, event[key]) for key, wanted in pattern.items())


def _matches_value(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and matches(wanted, value)
    if not isinstance(wanted, Sequence) or isinstance(wanted, str):
        raise UnknownPattern(f"a list was expected: {wanted!r}")
    for each in wanted:
        if not isinstance(each, Mapping):
            if each == value:
                return True
            continue
        if set(each) != {"prefix"}:
            raise UnknownPattern(f"only prefix is understood: {each!r}")
        if isinstance(value, str) and value.startswith(each["prefix"]):
            return True
    return False

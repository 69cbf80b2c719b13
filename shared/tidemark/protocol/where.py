"""Conditions of a filtered read, such as `where=/type:eq:"order"` (docs/reference/http.md).

A condition names a value of the message by a JSON pointer (RFC 6901), and an operator. A message matches if
it meets all conditions. An absent value meets none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidemark.protocol.compaction import split_pointer
from tidemark.protocol.errors import Malformed

MAX_CONDITIONS: Final = 10
MAX_WHERE_BYTES: Final = 1_000
_EXAMPLE: Final = '/type:eq:"order"'
#: Each operator, and its value.
OPERATORS: Final = {
    "eq": f"a JSON value, such as {_EXAMPLE}",
    "in": 'a JSON array, such as /type:in:["order","refund"]',
    "exists": "no value, as in /type:exists",
    "prefix": 'a JSON string, such as /type:prefix:"order."',
}
#: The pointer ends before the first operator.
_CONDITION: Final = re.compile(rf"((?:/.*?)?):({'|'.join(OPERATORS)})(?::(.*))?", re.DOTALL)
_INDEX: Final = re.compile("0|[1-9][0-9]{0,8}", re.ASCII)
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class MessageCondition:
    """The value at `path` is one of `values` (`eq`, `in`), begins with `prefix`, or, without both, exists."""

    path: tuple[str, ...]
    values: Collection[Any] | None = None
    prefix: str | None = None

    def is_met_by(self, message: Any) -> bool:
        found = _find(message, self.path)
        if self.prefix is not None:
            return isinstance(found, str) and found.startswith(self.prefix)
        return found is not _ABSENT and (self.values is None or _comparable(found) in self.values)


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """All conditions of a read. `text` differs between different filters."""

    text: str
    conditions: tuple[MessageCondition, ...]

    def make_rule(self) -> Callable[[bytes], bool]:
        """Return the function that decides whether a stored message matches, without the comma after it."""
        import msgspec  # A function that serves no filtered read does not import it for a read.

        decode = msgspec.json.Decoder().decode

        def matches(message: bytes) -> bool:
            try:
                value = decode(message)
            except (msgspec.MsgspecError, RecursionError):  # For example a lone surrogate.
                value = json.loads(message)
            return all(condition.is_met_by(value) for condition in self.conditions)

        return matches


def parse_filter(texts: Sequence[str]) -> MessageFilter:
    """Parse the values of `where`. Raises Malformed."""
    if len(texts) > MAX_CONDITIONS:
        raise Malformed(f"where may be given {MAX_CONDITIONS} times; it was given {len(texts)} times")
    size = sum(len(text.encode()) for text in texts)
    if size > MAX_WHERE_BYTES:
        raise Malformed(f"where may have {MAX_WHERE_BYTES} bytes in all; it has {size}")
    return MessageFilter("\n".join(texts), tuple(map(_parse_condition, texts)))


def _parse_condition(text: str) -> MessageCondition:
    found = _CONDITION.fullmatch(text)
    pointer, operator = (found[1], found[2]) if found else (*text.split(":", 2), "")[:2]
    if pointer[:1] not in {"", "/"} or re.search("~(?![01])", pointer):
        raise Malformed(
            "The pointer of where must be empty, or begin with / and have ~ only as ~0 or ~1 (RFC 6901); "
            f"got {pointer[:80]!r}"
        )
    if found is None:
        known = f"{', '.join(OPERATORS)}, as in {_EXAMPLE}"
        raise Malformed(f"The operator of where must be one of {known}; got {operator[:80]!r}")
    path, value = tuple(split_pointer(pointer)), found[3]
    wanted = _ABSENT if value is None else _parse_value(value)
    if operator == "exists" and value is None:
        return MessageCondition(path)
    if operator == "eq" and wanted is not _ABSENT:
        return MessageCondition(path, frozenset([_comparable(wanted)]))
    if operator == "in" and isinstance(wanted, list):
        return MessageCondition(path, frozenset(map(_comparable, wanted)))
    if operator == "prefix" and isinstance(wanted, str):
        return MessageCondition(path, prefix=wanted)
    takes = OPERATORS[operator]
    raise Malformed(f"The operator {operator} of where takes {takes}; got {(value or '')[:80]!r}")


def _parse_value(text: str) -> Any:
    """Return the JSON value, or `_ABSENT` for any other text."""
    from tidemark.protocol.json_text import check_value

    try:
        return json.loads(check_value(text.encode()))
    except Malformed:
        return _ABSENT


def _find(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        if isinstance(value, dict):
            value = value.get(name, _ABSENT)
        elif isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return _ABSENT
    return value


def _comparable(value: Any) -> Any:
    """Return a hashable value that is equal for equal JSON: 1 and 1.0 are equal, but true and 1 are not, as
    they are in Python."""
    if isinstance(value, dict):
        return frozenset(zip(value, map(_comparable, value.values()), strict=True))
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    return (bool, value) if isinstance(value, bool) else value

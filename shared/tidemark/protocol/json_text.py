"""JSON text (RFC 8259): checked, and cut into the values of an array, without building any value.

Three things ask for a scanner of our own. A lone surrogate (`"\\ud800"`) is grammatical JSON, which most
parsers refuse. The depth that is allowed is a fixed number and not what is left of a stack. And no step
keeps the interpreter for more than a few milliseconds, whatever the text: a thread that scans four
megabytes leaves room for the others between any two matches.

So the grammar is in regular expressions that match flat pieces (a scalar, an array or object of
scalars, a short run of those), and one loop goes from piece to piece with a stack of what is open.
Possessive quantifiers (`++`) keep each match linear; the upper bounds keep each match short.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from functools import cached_property
from typing import Final

from tidemark.protocol.errors import Malformed

#: Levels of arrays and objects in one message. A page puts one array around it, and is then still
#: within what the strictest common parsers take by default (PHP 512).
MAX_DEPTH: Final = 500

_WS: Final = rb"[ \t\n\r]*+"
_PART: Final = rb'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})'
_STRING: Final = rb'"' + _PART + rb'{0,2000}+"'
#: Numbers that a double holds by their form alone; `_other_scalar_end` looks at all others.
_NUMBER: Final = rb"-?(?:0|[1-9][0-9]{0,200}+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]{1,2}+)?+(?![0-9.eE])"
_SCALAR: Final = rb"(?:" + _STRING + rb"|" + _NUMBER + rb"|true|false|null)"


def _or_container_of(value: bytes, count: bytes) -> bytes:
    """A scalar, or an array or object of up to so many values."""
    element, member = value + _WS, _STRING + _WS + rb":" + _WS + value + _WS
    arrays = rb"\[" + _WS + rb"(?:" + element + rb"(?:," + _WS + element + rb"){0," + count + rb"}+)?+\]"
    objects = rb"\{" + _WS + rb"(?:" + member + rb"(?:," + _WS + member + rb"){0," + count + rb"}+)?+\}"
    return rb"(?:" + _SCALAR + rb"|" + arrays + rb"|" + objects + rb")"


#: Flat: at most this many levels.
_FLAT_LEVELS: Final = 2
_FLAT: Final = _or_container_of(_or_container_of(_SCALAR, rb"100"), rb"50")

#: A chain: at most so many containers that begin, or end, one inside the other, with flat values beside them.
_CHAIN_LEVELS: Final = 50
_BESIDE: Final = _or_container_of(_SCALAR, rb"20")

_BLANK: Final = re.compile(_WS)
#: The cheapest chains: arrays that begin, or end, directly one inside the other.
_OPEN_ARRAYS: Final = re.compile(rb"(?:\[" + _WS + rb"){3,1000}+(?!\])")
_CLOSE_ARRAYS: Final = re.compile(_WS + rb"(\](?:" + _WS + rb"\]){1,1000}+)")
_AFTER_VALUE: Final = re.compile(_WS + rb"([,\]}])")
_COLON: Final = re.compile(_WS + rb":" + _WS)
_CLOSES: Final = {b"[": b"]", b"{": b"}"}
_TO_CLOSING: Final = bytes.maketrans(b"[{", b"]}")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


class _Patterns:
    """The patterns that take milliseconds to compile. A small message needs none of them (`messages.py`), so
    none is compiled before a text needs it."""

    @cached_property
    def scalar(self) -> re.Pattern[bytes]:
        return re.compile(_SCALAR)

    @cached_property
    def flat(self) -> re.Pattern[bytes]:
        return re.compile(_FLAT)

    @cached_property
    def flat_element(self) -> re.Pattern[bytes]:
        return re.compile(_WS + rb"(" + _FLAT + rb")" + _WS + rb"([,\]])")

    @cached_property
    def flat_elements(self) -> re.Pattern[bytes]:
        return re.compile(_WS + rb"(?:" + _FLAT + _WS + rb"," + _WS + rb"){0,20}+")

    @cached_property
    def flat_members(self) -> re.Pattern[bytes]:
        member = _STRING + _WS + rb":" + _WS + _FLAT + _WS
        return re.compile(_WS + rb"(?:" + member + rb"," + _WS + rb"){0,20}+")

    @cached_property
    def opening_chain(self) -> re.Pattern[bytes]:
        """Matches up to the start of the innermost value. Everything before it in a container is flat."""
        element, member = _BESIDE + _WS, _STRING + _WS + rb":" + _WS + _BESIDE + _WS
        in_array = rb"\[" + _WS + rb"(?:" + element + rb"," + _WS + rb"){0,20}+(?!\])"
        in_object = rb"\{" + _WS + rb"(?:" + member + rb"," + _WS + rb"){0,20}+" + _STRING + _WS + rb":" + _WS
        return re.compile(rb"(?:" + in_array + rb"|" + in_object + rb"){2,%d}+" % _CHAIN_LEVELS)

    @cached_property
    def closing_chain(self) -> re.Pattern[bytes]:
        """Matches from the end of the innermost value. Everything behind it in a container is flat."""
        element, member = _BESIDE + _WS, _STRING + _WS + rb":" + _WS + _BESIDE + _WS
        in_array = rb"(?:," + _WS + element + rb"){0,20}+\]"
        in_object = rb"(?:," + _WS + member + rb"){0,20}+\}"
        return re.compile(
            rb"(?:" + _WS + rb"(?:" + in_array + rb"|" + in_object + rb")){2,%d}+" % _CHAIN_LEVELS
        )

    @cached_property
    def string(self) -> re.Pattern[bytes]:
        return re.compile(_STRING)

    @cached_property
    def string_parts(self) -> re.Pattern[bytes]:
        return re.compile(_PART + rb"{0,2000}+")

    @cached_property
    def any_number(self) -> re.Pattern[bytes]:
        return re.compile(rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+")


_PATTERNS: Final = _Patterns()
#: From here on, the nearest double is infinity: half a step above the largest one.
_TOO_LARGE: Final = Decimal(2**1024 - 2**970)


def check_value(text: bytes) -> bytes:
    """The one JSON value in `text`, without the white space around it. Raises Malformed."""
    _check_utf8(text)
    start = _after_blank(text, 0)
    end = _value_end(text, start)
    _check_end(text, end)
    return text[start:end]


def split_array(text: bytes) -> Iterator[bytes]:
    """The texts of the array's elements, without the white space around each. Raises Malformed."""
    _check_utf8(text)
    at = _after_blank(text, 0) + 1
    if (end := _after_blank(text, at)) < len(text) and text[end] == ord("]"):
        _check_end(text, end + 1)
        return
    while True:
        if flat := _PATTERNS.flat_element.match(text, at):
            yield flat[1]
            at, separator = flat.end(), flat[2]
        else:
            start = _after_blank(text, at)
            end = _value_end(text, start)
            yield text[start:end]
            after = _AFTER_VALUE.match(text, end)
            if after is None or after[1] == b"}":
                raise _expected("',' or ']'", text, end)
            at, separator = after.end(), after[1]
        if separator == b"]":
            _check_end(text, at)
            return


def _value_end(text: bytes, at: int) -> int:
    """The end of the value that begins at `at`."""
    opened = bytearray()
    while True:
        first = text[at : at + 1]
        if len(opened) >= MAX_DEPTH and first in _CLOSES:
            raise _too_deep()
        is_shallow = len(opened) <= MAX_DEPTH - _FLAT_LEVELS
        if flat := (_PATTERNS.flat if is_shallow else _PATTERNS.scalar).match(text, at):
            at = flat.end()
        elif first in _CLOSES:
            at, is_empty = _open(text, at, opened)
            if not is_empty:
                continue
        else:
            at = _other_scalar_end(text, at)
        while opened:
            at = _after_closing_chain(text, at, opened)
            if not opened:
                return at
            after = _AFTER_VALUE.match(text, at)
            if after is not None and after[1] == b",":
                at = _next_value(text, after.end(), opened)
                break
            closing = _CLOSES[bytes(opened[-1:])]
            if after is None or after[1] != closing:
                raise _expected(f"',' or '{closing.decode()}'", text, at)
            opened.pop()
            at = after.end()
        else:
            return at


def _open(text: bytes, at: int, opened: bytearray) -> tuple[int, bool]:
    """Opens the containers that begin here. Returns where the next value to look at begins, and False; or
    where the container that was opened ends, because it is empty, and True."""
    if (inside := _after_opening_chain(text, at, opened)) > at:
        return inside, False
    first, inside = text[at : at + 1], _after_blank(text, at + 1)
    opened += first
    if text[inside : inside + 1] == _CLOSES[first]:
        return inside, True
    return _next_value(text, inside, opened), False


def _after_opening_chain(text: bytes, at: int, opened: bytearray) -> int:
    """Open the containers that begin one inside the other, and return the start of the innermost value.
    Returns `at` for all other text, which is then parsed step by step."""
    if arrays := _OPEN_ARRAYS.match(text, at):
        opened += b"[" * arrays[0].count(b"[")
        if len(opened) > MAX_DEPTH:
            raise _too_deep()
        return arrays.end()
    if not 1 <= len(opened) <= MAX_DEPTH - _FLAT_LEVELS - _CHAIN_LEVELS:
        return at
    chain = _PATTERNS.opening_chain.match(text, at)
    if chain is None:
        return at
    opened += _brackets(chain[0])
    return chain.end()


def _after_closing_chain(text: bytes, at: int, opened: bytearray) -> int:
    """Closes the containers that end one after the other. Returns where the last one ends; `at` as above."""
    if opened.endswith(b"[") and (chain := _CLOSE_ARRAYS.match(text, at)):
        closing = b"]" * chain[1].count(b"]")
    elif 1 < len(opened) < MAX_DEPTH and (chain := _PATTERNS.closing_chain.match(text, at)):
        closing = _brackets(chain[0])
    else:
        return at
    if opened[: -len(closing) - 1 : -1].translate(_TO_CLOSING) != closing:
        return at
    del opened[-len(closing) :]
    return chain.end()


def _brackets(chain: bytes) -> bytes:
    """The brackets of the chain itself: neither in strings nor of the flat values beside it."""
    is_plain = b"\\" not in chain
    outside = b"".join(chain.split(b'"')[::2]) if is_plain else _PATTERNS.string.sub(b"", chain)
    return outside.translate(None, _NO_BRACKETS).replace(b"[]", b"").replace(b"{}", b"")


def _too_deep() -> Malformed:
    return Malformed(f"JSON is nested too deeply: a message may have {MAX_DEPTH} levels")


def _next_value(text: bytes, at: int, opened: bytearray) -> int:
    """The start of the next value to look at: flat values are skipped, and in an object its name."""
    is_object = opened.endswith(b"{")
    flat = None
    if len(opened) <= MAX_DEPTH - _FLAT_LEVELS:
        flat = (_PATTERNS.flat_members if is_object else _PATTERNS.flat_elements).match(text, at)
    at = flat.end() if flat else _after_blank(text, at)
    if not is_object:
        return at
    if text[at : at + 1] != b'"':
        raise _expected("a name in double quotes", text, at)
    colon = _COLON.match(text, _string_end(text, at))
    if colon is None:
        raise _expected("':' after a name", text, at)
    return colon.end()


def _other_scalar_end(text: bytes, at: int) -> int:
    """The end of a scalar that is not flat: a string of many escapes, or a number that may be too large."""
    if text[at : at + 1] == b'"':
        return _string_end(text, at)
    number = _PATTERNS.any_number.match(text, at)
    if number is None:
        raise _expected("a value", text, at)
    try:
        is_too_large = Decimal(number[0].decode()).copy_abs() >= _TOO_LARGE
    except ArithmeticError:  # An exponent beyond what any arithmetic takes.
        is_too_large = True
    if is_too_large:
        shown = number[0][:20].decode() + ("…" if len(number[0]) > 20 else "")
        raise Malformed(
            f"The number {shown} at byte {at} is beyond the range of a double: send it as a string"
        )
    return number.end()


def _string_end(text: bytes, at: int) -> int:
    at += 1
    while (parts := _PATTERNS.string_parts.match(text, at)) and parts.end() > at:
        at = parts.end()
    if text[at : at + 1] != b'"':
        raise _expected("the end of a string, or a character or escape that JSON allows,", text, at)
    return at + 1


def _after_blank(text: bytes, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _check_end(text: bytes, at: int) -> None:
    if _after_blank(text, at) != len(text):
        raise _expected("nothing after the value", text, _after_blank(text, at))


def _check_utf8(text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as fault:
        raise Malformed(f"Invalid JSON: it is not UTF-8 at byte {fault.start}") from None


def _expected(what: str, text: bytes, at: int) -> Malformed:
    where = "the end" if at >= len(text) else f"byte {at}"
    return Malformed(f"Invalid JSON: expected {what} at {where}")

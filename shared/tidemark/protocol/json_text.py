"""JSON text (RFC 8259): checked, and cut into the elements of an array, byte for byte.

msgspec does both in C, without decoding values. Four rules are our own:

- A lone surrogate escape (`"\\ud800"`) is JSON. JavaScript writes one for a string cut inside an emoji.
- The allowed depth is a fixed number; msgspec's depends on the free stack of the thread.
- A number that no double can represent is refused.
- No step holds the interpreter for more than about 20 ms, so that a server's other threads continue. An array
  of too many elements is refused before there is an object for each.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import accumulate, islice, pairwise
from math import isinf
from typing import Any, Final

import msgspec
import orjson

from tidemark.protocol.errors import Malformed, TooManyMessages

#: Levels of arrays and objects in one message. A page adds one array, and still fits the default limit of the
#: strictest common parser (PHP: 512).
MAX_DEPTH: Final = 500

_WHITESPACE: Final = b" \t\n\r"
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_CHUNK_BYTES: Final = 64 * 1024

#: Maps all digits to 0 and E to e.
_DIGITS: Final = bytes.maketrans(b"E123456789", b"e000000000")
#: A number beyond a double contains one of these.
_LARGE: Final = (b"0" * 309, b"e000", b"e+000")

#: Patterns for text `_without_escaped_quotes`. In invalid JSON a string may have no end.
_STRING: Final = rb'"[^"]*+"?'
_NUMBER: Final = re.compile(_STRING + rb"|(-?[0-9][-+.eE0-9]*+)")
_FLAT: Final = rb'[\[{](?:[^][{}"]++|' + _STRING + rb"){0,500}+[\]}]"
#: The structure of a text: a string, a container without nested ones, a bracket, a comma.
_PIECE: Final = re.compile(_STRING + rb"|" + _FLAT + rb"|[][{},]")


def check_value(text: bytes) -> bytes:
    """Return the one JSON value in `text`, without surrounding white space. Raises Malformed."""
    _decode(text, msgspec.Raw, MAX_DEPTH)
    value = text.strip(_WHITESPACE)
    _check_depth(value, MAX_DEPTH)
    return value


def split_array(text: bytes, most: int = sys.maxsize) -> list[bytes]:
    """Return the texts of the array's elements, each without surrounding white space. Raises Malformed, and
    TooManyMessages for more than `most`."""
    if text.count(b",") >= most and next(islice(_commas(text), most - 1, None), None) is not None:
        raise TooManyMessages(most)
    raw = _decode(text, list[msgspec.Raw], MAX_DEPTH + 1)
    elements = _cut(text) if raw is None else [bytes(each) for each in raw]
    for element in elements:
        if len(element) > 2 * MAX_DEPTH:
            _check_depth(element, MAX_DEPTH)
    return elements


def _decode(text: bytes, kind: Any, depth: int) -> Any:
    """Decode the text with msgspec; None if the text is valid and msgspec cannot represent it."""
    try:
        text.decode()
    except UnicodeDecodeError as fault:
        raise Malformed(f"Invalid JSON: it is not UTF-8 at byte {fault.start}") from None
    # Replace the escape by another of the same length, which leaves the grammar and the positions of errors.
    whole = text.replace(rb"\ud", rb"\u0").replace(rb"\uD", rb"\u0")
    try:
        decoded = _decoder(kind).decode(whole)
    except msgspec.DecodeError as fault:
        raise Malformed(_in_plain_words(fault)) from None
    except RecursionError:
        decoded = None
        _check_depth(text, depth)
        _check_without_the_stack(whole)
    digits = text.translate(_DIGITS)
    if b"000" in digits and any(large in digits for large in _LARGE):  # Few texts have three zeros in a row.
        _check_numbers(text)
    return decoded if whole is text else None


@cache
def _decoder(kind: Any) -> Any:
    return msgspec.json.Decoder(kind)


def _in_plain_words(fault: Exception) -> str:
    """Rewrite an error of msgspec, such as `JSON is malformed: invalid number (byte 2)`."""
    what, is_known, place = str(fault).removeprefix("JSON is malformed: ").rpartition(" (")
    if not is_known:
        return "Invalid JSON: a value is missing or not complete at the end"
    return f"Invalid JSON: {what} at {place.removesuffix(')')}"


def _check_without_the_stack(text: bytes) -> None:
    """Check with orjson, which allows 1,024 levels with any free stack, but decodes values."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as fault:
        at = len(text.decode()[: fault.pos].encode())
        raise Malformed(f"Invalid JSON: {fault.msg} at byte {at}") from None


def _check_numbers(text: bytes) -> None:
    for number in _NUMBER.finditer(_without_escaped_quotes(text)):
        if number[1] and isinf(float(number[1])):
            shown = number[1][:20].decode() + ("…" if len(number[1]) > 20 else "")
            where = f"The number {shown} at byte {number.start()}"
            raise Malformed(f"{where} is beyond the range of a double: send it as a string")


def _check_depth(text: bytes, most: int) -> None:
    """Check every bracket outside strings, if there are enough brackets to exceed the depth."""
    if text.count(b"[") + text.count(b"{") <= most:
        return
    plain, level, is_in_string = _without_escaped_quotes(text), 0, False
    for start in range(0, len(plain), _CHUNK_BYTES):
        parts = plain[start : start + _CHUNK_BYTES].split(b'"')
        brackets = b"".join(parts[is_in_string::2]).translate(None, _NO_BRACKETS)
        levels = list(accumulate([1 if each in b"[{" else -1 for each in brackets], initial=level))
        if max(levels) > most:
            raise Malformed(f"JSON is nested too deeply: a message may have {MAX_DEPTH} levels")
        level = levels[-1]
        is_in_string ^= len(parts) % 2 == 0


def _cut(array: bytes) -> list[bytes]:
    """Return the elements of a valid array."""
    edges = pairwise([array.index(b"["), *_commas(array), array.rindex(b"]")])
    elements = [array[before + 1 : behind].strip(_WHITESPACE) for before, behind in edges]
    return [] if elements == [b""] else elements


def _commas(array: bytes) -> Iterator[int]:
    """Yield the positions of the commas between elements; in invalid JSON, of the commas before the error."""
    level = 0
    for piece in _PIECE.finditer(_without_escaped_quotes(array), array.index(b"[") + 1):
        token = piece[0]
        if token in (b"[", b"{"):
            level += 1
        elif token in (b"]", b"}"):
            level -= 1
        elif token == b"," and level == 0:
            yield piece.start()


def _without_escaped_quotes(text: bytes) -> bytes:
    """Return a text of the same structure and length in which every quote begins or ends a string."""
    return text.replace(rb"\\", b"..").replace(rb"\"", b"..")

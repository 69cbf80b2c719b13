"""Find a message's key, and whether the message deletes it (docs/compaction.md).

Compaction keeps the last message of each key, so two keys that are equal here must be equal to every reader.
In doubt a message has no key and is kept. msgspec decodes only the needed members. Python's own parser
decides on messages that msgspec refuses: a lone surrogate, or a member that is missing or of another type.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from tidemark.protocol.compaction import split_pointer

#: The digest of the key, and whether the message deletes that key.
Keyed: TypeAlias = tuple[bytes, bool]
#: Takes a stored message, with or without the comma after it. Returns None if it has no key.
KeyRule: TypeAlias = Callable[[bytes], Keyed | None]

#: The State Protocol's changes. A message with another operation may change a part of a row, so it is kept.
_Operation: TypeAlias = Literal["insert", "update", "upsert", "delete"]
#: Bytes that are equal for two keys only if the keys are equal (None: no key), and the operation.
_Found: TypeAlias = tuple[str | None, Any]
_Reader: TypeAlias = Callable[[bytes], _Found]

_EMPTY: Final = blake2b(digest_size=16)
_COMMA: Final = ord(",")


def make_key_rule(pointer: str | None) -> KeyRule:
    """Return the rule of `Compaction.key`."""
    if pointer is None:
        return _make_rule(_read_change, _read_any_change)
    path = split_pointer(pointer)
    read_any = partial(_read_any_member, path)
    try:
        return _make_rule(_make_reader(path), read_any)
    except ValueError:
        return _make_rule(read_any, read_any)


def _make_rule(read: _Reader, read_any: _Reader) -> KeyRule:
    def rule(message: bytes) -> Keyed | None:
        text = message[:-1] if message[-1] == _COMMA else message
        try:
            try:
                name, operation = read(text)
            except msgspec.MsgspecError:
                name, operation = read_any(text)
        except RecursionError:  # Nested too deeply for the thread's stack.
            return None
        if name is None:
            return None
        digest = _EMPTY.copy()  # A copy takes half the time of a new one.
        digest.update(name.encode("utf-8", "surrogatepass"))
        return digest.digest(), operation == "delete"

    return rule


# --- the State Protocol: `type` and `key` -------------------------------------------------


class _Headers(msgspec.Struct, gc=False):
    operation: _Operation
    control: Any = msgspec.UNSET


class _Change(msgspec.Struct, gc=False):
    type: str
    key: str
    headers: _Headers


_decode_change: Final = msgspec.json.Decoder(_Change).decode


def _read_change(text: bytes) -> _Found:
    change = _decode_change(text)
    kind, headers = change.type, change.headers
    if headers.control is not msgspec.UNSET:
        return None, None
    return f"{len(kind)}:{kind}{change.key}", headers.operation


def _read_any_change(text: bytes) -> _Found:
    message = json.loads(text)
    kind, key = _find_member(message, "type"), _find_member(message, "key")
    operation = _find_member(message, "headers", "operation")
    is_change = operation in get_args(_Operation) and "control" not in message["headers"]
    if is_change and isinstance(kind, str) and isinstance(key, str):
        return f"{len(kind)}:{kind}{key}", operation
    return None, None


# --- any other member, by its JSON pointer ------------------------------------------------


class _AnyHeaders(msgspec.Struct, gc=False):
    operation: Any = None


_HEADERS: Final[Any] = _AnyHeaders | list[msgspec.Raw] | str | int | float | bool | None


def _make_reader(path: list[str]) -> _Reader:
    """Return a reader for this path. Raises ValueError for quotes in names and for repeated names."""
    key: Any = Any
    for name in reversed(path[1:]):
        key = msgspec.defstruct("Inner", [("at", key)], rename={"at": name}, gc=False)
    members: list[Any] = [("at", key), ("headers", _HEADERS, None)]
    message = msgspec.defstruct("Message", members, rename={"at": path[0]}, gc=False)
    decode, find_key = msgspec.json.Decoder(message).decode, attrgetter(".".join(["at"] * len(path)))

    def read(text: bytes) -> _Found:
        decoded: Any = decode(text)
        headers = decoded.headers
        operation = headers.operation if type(headers) is _AnyHeaders else None
        return _name_scalar(find_key(decoded)), operation

    return read


def _read_any_member(path: list[str], text: bytes) -> _Found:
    message = json.loads(text)
    return _name_scalar(_find_member(message, *path)), _find_member(message, "headers", "operation")


def _name_scalar(key: Any) -> str | None:
    """Return the key's text. 1, 1.0 and 1e0 are one number, and "1" is another key. Integers are exact,
    though JavaScript rounds above 2**53, because keys that differ for other readers must not become one."""
    if isinstance(key, str):
        return '"' + key
    if isinstance(key, float) and key.is_integer():
        key = int(key)
    return None if key is None or isinstance(key, list | dict) else repr(key)


def _find_member(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value

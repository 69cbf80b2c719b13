"""Folds: what a stream's messages amount to, as the snapshot that stands for them (extensions, §2).

A fold is three things: a state to begin with, what a message does to it, and how the state is
written down and read back, because the next snapshot begins from the last one. A fold of one's
own is a class with the methods of `Fold`, named as `module:Class`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Final, Protocol

import orjson

JSON: Final = "application/json"


class BadMessage(ValueError):
    """A message that the fold cannot take; the message says why."""


class Fold(Protocol):
    #: Of the snapshot.
    content_type: str

    def load(self, snapshot: bytes | None) -> Any:
        """The state that a snapshot holds; None is the state of an empty stream."""

    def apply(self, state: Any, message: bytes) -> Any:
        """The state after the message; `state` may be changed. Raises BadMessage."""

    def dump(self, state: Any) -> bytes: ...


class UnknownFold(ValueError):
    """There is no fold of that name."""


class LastByKey:
    """The last message of each key, as an array in the order of the keys' first appearance.

    Messages are JSON objects; `key` names the member that tells them apart. One whose member
    `deleted` is true removes its key.
    """

    content_type = JSON

    def __init__(self, key: str = "key") -> None:
        self._key = key

    def load(self, snapshot: bytes | None) -> dict[Any, bytes]:
        if snapshot is None:
            return {}
        return {value[self._key]: orjson.dumps(value) for value in orjson.loads(snapshot)}

    def apply(self, state: dict[Any, bytes], message: bytes) -> dict[Any, bytes]:
        value = parse(message)
        try:
            key = value[self._key]
            hash(key)
        except (TypeError, KeyError):
            raise BadMessage(f"it is no JSON object with a plain member {self._key!r}") from None
        if value.get("deleted") is True:
            state.pop(key, None)
        else:
            state[key] = message
        return state

    def dump(self, state: dict[Any, bytes]) -> bytes:
        return b"[" + b",".join(state.values()) + b"]"


class MergePatch:
    """Every message is a JSON merge patch (RFC 7386) to one document."""

    content_type = JSON

    def load(self, snapshot: bytes | None) -> Any:
        return None if snapshot is None else orjson.loads(snapshot)

    def apply(self, state: Any, message: bytes) -> Any:
        return merge(state, parse(message))

    def dump(self, state: Any) -> bytes:
        return orjson.dumps(state)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2: MergePatch(Target, Patch)."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = merge(target.get(name), value)
    return target


def parse(message: bytes) -> Any:
    try:
        return orjson.loads(message)
    except orjson.JSONDecodeError as fault:
        raise BadMessage(f"it is not JSON: {fault}") from None


def find_fold(name: str, key: str) -> Fold:
    """`last-by-key`, `merge-patch` or `module:Class`. Raises UnknownFold."""
    if name == "last-by-key":
        return LastByKey(key)
    if name == "merge-patch":
        return MergePatch()
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UnknownFold(f"fold must be last-by-key, merge-patch or module:Class, got {name!r}")
    try:
        fold = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError) as fault:
        raise UnknownFold(f"fold {name!r} cannot be loaded: {fault}") from None
    missing = [each for each in ("content_type", "load", "apply", "dump") if not hasattr(fold, each)]
    if missing:
        raise UnknownFold(f"fold {name!r} has no {', '.join(missing)}")
    made: Fold = fold
    return made


def fold_messages(fold: Fold, state: Any, messages: Iterable[bytes]) -> Any:
    for message in messages:
        state = fold.apply(state, message)
    return state

"""The columns that are members of a JSON message: `type`, `key`, `headers`, as the State Protocol has them.

They are made only where they are asked for, because every message is parsed for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa

from tidemark.spark.options.read import JSON_COLUMNS

_ABSENT: Final = msgspec.Raw(b"null")


class _Change(msgspec.Struct, gc=False):  # type: ignore[call-arg] # msgspec is not where types are checked
    type: msgspec.Raw = _ABSENT
    key: msgspec.Raw = _ABSENT
    headers: msgspec.Raw = _ABSENT


_decoder: Final = msgspec.json.Decoder(_Change)


def json_arrays(columns: Sequence[str], values: Sequence[bytes]) -> dict[str, pa.Array]:
    """The columns that are members of these JSON messages."""
    wanted = JSON_COLUMNS.intersection(columns)
    if not wanted:
        return {}
    changes = list(map(_decode, values))
    return {
        name: pa.array([_text(getattr(change, name)) for change in changes], pa.string()) for name in wanted
    }


def _decode(value: bytes) -> _Change:
    try:
        change: _Change = _decoder.decode(value)
    except msgspec.ValidationError:
        return _Change()  # JSON, and no object.
    return change


def _text(member: msgspec.Raw) -> str | None:
    """A text as it is, anything else as it was written; None if there is none."""
    raw = bytes(member)
    text: str = msgspec.json.decode(raw) if raw.startswith(b'"') else raw.decode()
    return None if raw == b"null" else text

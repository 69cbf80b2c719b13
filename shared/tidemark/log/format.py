"""The format epoch: the least release that may use the table (docs/schema-evolution.md)."""

from __future__ import annotations

from tidemark.log.schema import FORMAT_EPOCH, FORMAT_KEY, LEAST_EPOCH, decode_format, encode_format
from tidemark.log.table import IF_ABSENT, AnyOf, Compared, ConditionFailed, Table
from tidemark.protocol.errors import FormatTooNew


def check_format(table: Table, *, raises: bool = False) -> None:
    """Raises FormatTooNew if a later release has stored what this one would misread. `raises` is for one that
    writes: it raises the epoch to its own, and so shuts out releases that cannot read what it writes."""
    least = decode_format(table.get(FORMAT_KEY))
    if raises and least < FORMAT_EPOCH:
        least = _raise_format(table)
    if least > FORMAT_EPOCH:
        raise FormatTooNew(least, FORMAT_EPOCH)


def _raise_format(table: Table) -> int:
    is_lower = AnyOf(IF_ABSENT, Compared(LEAST_EPOCH, "<", FORMAT_EPOCH))
    try:
        table.put(encode_format(FORMAT_EPOCH), is_lower)
    except ConditionFailed as refused:  # Another process was first.
        return decode_format(refused.existing)
    return FORMAT_EPOCH

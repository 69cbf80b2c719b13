"""The one seam to the table: few calls, conditions and changes as data, and an exception for every refusal.

`log/dynamodb_table.py` says them to DynamoDB; `engine/table.py` carries them out in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from tidemark.log.schema import (
    ENDED_MS,
    FORMAT_EPOCH,
    FORMAT_KEY,
    LEAST_EPOCH,
    SK,
    Item,
    Key,
    decode_format,
    encode_format,
)
from tidemark.protocol.errors import Damaged, FormatTooNew

#: The most keys that `Table.delete_many` takes.
MAX_DELETES: Final = 25
#: The most keys that `Table.get_many` takes.
MAX_GETS: Final = 100
#: The most writes that `Table.transact` takes.
MAX_WRITES: Final = 100


@dataclass(frozen=True, slots=True)
class Present:
    """The item is there, and has the attribute."""

    name: str


@dataclass(frozen=True, slots=True)
class Missing:
    """The item is not there, or has no such attribute."""

    name: str


@dataclass(frozen=True, slots=True)
class Compared:
    """The attribute compares in this way with a text or a number. A missing one, or one of the other type, is
    `<>` and nothing else."""

    name: str
    by: Literal["=", "<>", "<", "<=", ">"]
    value: str | int


@dataclass(frozen=True, slots=True, init=False)
class AllOf:
    conditions: tuple[Condition, ...]

    def __init__(self, *conditions: Condition) -> None:
        object.__setattr__(self, "conditions", conditions)


@dataclass(frozen=True, slots=True, init=False)
class AnyOf:
    conditions: tuple[Condition, ...]

    def __init__(self, *conditions: Condition) -> None:
        object.__setattr__(self, "conditions", conditions)


Condition = Present | Missing | Compared | AllOf | AnyOf
"""A write is carried out only if the item meets this condition."""

#: No item has this key yet: the condition under which an append takes its place.
IF_ABSENT: Final = Missing(SK)


def equals(name: str, value: str | int) -> Compared:
    return Compared(name, "=", value)


def if_never_or_ended_before(created_ms: int) -> Condition:
    """The place of a stream or a bucket is free for what is created at `created_ms`: nothing was ever
    there, or it ended before. (Only an end mark has the attribute that is compared.)"""
    return AnyOf(IF_ABSENT, Compared(ENDED_MS, "<", created_ms))


@dataclass(frozen=True, slots=True)
class Update:
    """A change of some attributes of an item: those that are set, and the numbers that are added to. An item
    that is not there is made, and a number that is missing counts as zero."""

    key: Key
    sets: Item = field(default_factory=dict)
    adds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Write:
    """One write of a transaction: of a whole item, or of parts of one."""

    item: Item | None = None
    update: Update | None = None
    condition: Condition | None = None


EachHundred = Callable[[Callable[[Sequence[Key]], list[Item]], Sequence[Sequence[Key]]], Iterable[list[Item]]]
"""The same call for several hundreds of keys, some at once (`service/stores.py`)."""


def in_hundreds(keys: Sequence[Key]) -> list[Sequence[Key]]:
    """The keys in pieces that `Table.get_many` takes."""
    return [keys[low : low + MAX_GETS] for low in range(0, len(keys), MAX_GETS)]


class ConditionFailed(Exception):
    """The item's condition did not hold; `existing` is the item that is there instead.

    `maybe_landed`: the same write was sent before and got no reply. That one may have landed, and its item
    may be gone again.
    """

    def __init__(self, existing: Item | None, *, maybe_landed: bool = False) -> None:
        super().__init__("condition failed")
        self.existing = existing
        self.maybe_landed = maybe_landed


class TransactionRefused(Exception):
    """A transaction did nothing. For each write: whether its condition failed, and the item that is there
    then. `maybe_landed` as in ConditionFailed."""

    def __init__(
        self, failed: Sequence[bool], existing: Sequence[Item | None], *, maybe_landed: bool = False
    ) -> None:
        super().__init__("transaction refused")
        self.failed = failed
        self.existing = existing
        self.maybe_landed = maybe_landed


class Table(Protocol):
    """Items by key, in partitions that are in the order of their sort keys' bytes. Every read sees all that
    was acknowledged before it. Each call is carried out whole or not at all, except `delete_many`; it raises
    Busy, OutcomeUnknown, StorageSilent or StorageUnavailable where storage does not do it."""

    def get(self, key: Key) -> Item | None: ...

    def get_many(self, keys: Sequence[Key], attributes: Sequence[str] = ()) -> list[Item]:
        """The existing items of up to 100 different keys, in no order."""

    def put(self, item: Item, condition: Condition | None = None) -> None:
        """Raises ConditionFailed with the item that is there instead."""

    def raise_number(self, key: Key, name: str, value: int, incarnation: str) -> None:
        """Raise one attribute of a stream's item to `value`; a higher one stays, so that the write may
        land late. Raises ConditionFailed if the item is not that of this incarnation."""

    def delete(self, key: Key, condition: Condition | None = None) -> None:
        """Raises ConditionFailed with the item that is there."""

    def delete_many(self, keys: Sequence[Key]) -> None:
        """Remove up to 25 items. If it raises, some may be gone."""

    def transact(self, writes: Sequence[Write]) -> None:
        """All of up to 100 writes of different items, or none. Raises TransactionRefused."""

    def query(
        self,
        pk: str,
        *,
        at_least: str = "0",
        at_most: str = "~",
        attributes: Sequence[str] = (),
        limit: int | None = None,
        backward: bool = False,
    ) -> tuple[list[Item], bool]:
        """One page of the partition's items by sort key, at most a megabyte, and whether there are more."""


def pages_around_damage(
    table: Table, pk: str, low: str, high: str, limit: int | None = None
) -> Iterator[list[Item]]:
    """Pages of a partition. At a damaged item, and beside a damaged key, the items are read one by one: up to
    there, and then from the last item back to there. So one place that is damaged hides no other item. The
    engine logs which row it is. Raises Damaged where nothing can be read."""
    damage: Damaged | None = None
    more, found = True, ""
    while more:
        try:
            items, more = table.query(pk, at_least=low, at_most=high, limit=1 if damage else limit)
        except Damaged as fault:
            more, damage = damage is None, fault
            continue
        yield items
        if items:
            found = items[-1][SK]["S"]
            low = f"{found} "  # Just behind it.
    while damage:
        with suppress(Damaged):
            items, _ = table.query(pk, at_least=low, at_most=high, limit=2, backward=True)
            if items := [item for item in items if item[SK]["S"] != high]:
                yield items
                found = high = items[-1][SK]["S"]
                continue
        if not found:
            raise damage
        return


def check_format(table: Table, needed: int = 0) -> int:
    """The format epoch: the least release that may use the table (docs/schema-evolution.md). One that writes
    raises it to what is `needed` to read what it writes, and so shuts out releases that cannot. Returns the
    epoch. Raises FormatTooNew if a later release has stored what this one would misread."""
    least = decode_format(table.get(FORMAT_KEY))
    if least < needed:
        least = _raise_format(table, needed)
    if least > FORMAT_EPOCH:
        raise FormatTooNew(least, FORMAT_EPOCH)
    return least


def _raise_format(table: Table, needed: int) -> int:
    is_lower = AnyOf(IF_ABSENT, Compared(LEAST_EPOCH, "<", needed))
    try:
        table.put(encode_format(needed), is_lower)
    except ConditionFailed as refused:  # Another process was first.
        return decode_format(refused.existing)
    return needed

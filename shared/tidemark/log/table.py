"""The interface to the table: a few calls, conditions and changes as data, and an exception for every
refusal.

`log/dynamodb_table.py` implements it with DynamoDB, `engine/table.py` in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from tidemark.log import schema
from tidemark.log.schema import PK, SK, Item, Key
from tidemark.protocol.errors import Damaged, FormatTooNew

#: The most keys that `Table.delete_many` takes.
MAX_DELETES: Final = 25
#: The most keys that `Table.get_many` takes.
MAX_GETS: Final = 100
#: The most writes that `Table.transact` takes.
MAX_WRITES: Final = 100
#: The smallest character: a key with this suffix is the next key in sort order.
NEXT: Final = "\x00"


@dataclass(frozen=True, slots=True)
class Present:
    """The item exists and has the attribute."""

    name: str


@dataclass(frozen=True, slots=True)
class Missing:
    """The item does not exist, or has no such attribute."""

    name: str


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison with a text or a number. A missing attribute, or one of the other type, satisfies only
    `<>`."""

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
"""A write is executed only if the item meets this condition."""

#: No item has this key yet: the condition under which an append takes its place.
IF_ABSENT: Final = Missing(SK)


def equals(name: str, value: str | int) -> Compared:
    return Compared(name, "=", value)


def if_never_or_ended_before(created_ms: int) -> Condition:
    """The key of a stream or a bucket is free for a creation at `created_ms`: it was never used, or its last
    use ended earlier. (Only an end mark has the compared attribute.)"""
    return AnyOf(IF_ABSENT, Compared(schema.ENDED_MS, "<", created_ms))


@dataclass(frozen=True, slots=True)
class Update:
    """A change of some attributes of an item: new values, and amounts to add to numbers. A missing item is
    created, and a missing number counts as zero."""

    key: Key
    sets: Item = field(default_factory=dict)
    adds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Write:
    """One write of a transaction: a whole item, or an update of parts of one."""

    change: Item | Update
    condition: Condition | None = None


EachHundred = Callable[[Callable[[Sequence[Key]], list[Item]], Sequence[Sequence[Key]]], Iterable[list[Item]]]
"""Runs the same call for several lists of up to a hundred keys, some in parallel (`service/stores.py`)."""


def in_hundreds(keys: Sequence[Key]) -> list[Sequence[Key]]:
    """Return the keys in lists that `Table.get_many` accepts."""
    return [keys[low : low + MAX_GETS] for low in range(0, len(keys), MAX_GETS)]


class ConditionFailed(Exception):
    """The item's condition did not hold; `existing` is the item under the key.

    `maybe_landed`: the same write was sent before without a reply. The first one may have succeeded, even
    if its item is gone.
    """

    def __init__(self, existing: Item | None, *, maybe_landed: bool = False) -> None:
        super().__init__("condition failed")
        self.existing = existing
        self.maybe_landed = maybe_landed


class TransactionRefused(Exception):
    """A transaction wrote nothing. For each write: whether its condition failed, and then the existing item.
    `maybe_landed` as in ConditionFailed."""

    def __init__(
        self, failed: Sequence[bool], existing: Sequence[Item | None], *, maybe_landed: bool = False
    ) -> None:
        super().__init__("transaction refused")
        self.failed = failed
        self.existing = existing
        self.maybe_landed = maybe_landed


class Table(Protocol):
    """Items by key, in partitions sorted by the bytes of the sort keys. Every read sees all acknowledged
    writes. Each call except `delete_many` is atomic. Raises Busy, OutcomeUnknown, StorageSilent or
    StorageUnavailable if storage fails."""

    def get(self, key: Key) -> Item | None: ...

    def get_many(self, keys: Sequence[Key], attributes: Sequence[str] = ()) -> list[Item]:
        """Return the existing items of up to 100 different keys, in any order."""

    def put(self, item: Item, condition: Condition | None = None) -> None:
        """Raises ConditionFailed with the existing item."""

    def raise_number(self, key: Key, name: str, value: int, incarnation: str) -> None:
        """Raise one attribute of a stream's item to `value`. A higher value stays, so a late copy does no
        harm. Raises ConditionFailed if the item has another incarnation."""

    def delete(self, key: Key, condition: Condition | None = None) -> None:
        """Raises ConditionFailed with the existing item."""

    def delete_many(self, keys: Sequence[Key]) -> None:
        """Remove up to 25 items. After an exception some may be removed."""

    def transact(self, writes: Sequence[Write]) -> None:
        """Execute up to 100 writes of different items, or none. Raises TransactionRefused."""

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
        """Return one page of the partition's items by sort key, at most 1 MB, and whether there are more."""


def pages(
    table: Table, pk: str, low: str, high: str, *, attributes: Sequence[str] = (), limit: int | None = None
) -> Iterator[list[Item]]:
    """Yield the pages of a partition between two sort keys, each of at most `limit` items."""
    more = True
    while more and low <= high:  # DynamoDB refuses other bounds.
        items, more = table.query(pk, at_least=low, at_most=high, attributes=attributes, limit=limit)
        if items:
            yield items
            low = items[-1][SK]["S"] + NEXT


def remove_items(table: Table, items: Iterable[Item]) -> None:
    """Remove any number of items, given with their keys, 25 with each call."""
    keys = [{PK: item[PK], SK: item[SK]} for item in items]
    for start in range(0, len(keys), MAX_DELETES):
        table.delete_many(keys[start : start + MAX_DELETES])


def pages_around_damage(
    table: Table, pk: str, low: str, high: str, limit: int | None = None
) -> Iterator[list[Item]]:
    """Yield the pages of a partition around one damaged item. On damage the items are read one by one, first
    forward to the damage, then backward from the end, so that the damage hides no other item. The engine logs
    the damaged row. Raises Damaged if no item is readable."""
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
            low = found + NEXT
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
    """Return the format epoch: the lowest epoch of a release that may use the table
    (docs/schema-evolution.md). A release that writes raises the epoch to `needed`, so that releases that
    cannot read its data stop. Raises FormatTooNew for data that this release would misread."""
    least = schema.decode_format(table.get(schema.FORMAT_KEY))
    if least < needed:
        try:
            table.put(
                schema.encode_format(needed), AnyOf(IF_ABSENT, Compared(schema.LEAST_EPOCH, "<", needed))
            )
            least = needed
        except ConditionFailed as refused:  # Another process was first.
            least = schema.decode_format(refused.existing)
    if least > schema.FORMAT_EPOCH:
        raise FormatTooNew(least, schema.FORMAT_EPOCH)
    return least

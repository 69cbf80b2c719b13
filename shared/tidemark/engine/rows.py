"""The rows of the items, with checks for corruption, because SQLite does not check its pages.

A row has the CRC-32 of its item, and the item contains its key. Each read compares both.

A corrupt *key* in the B-tree can hide rows: a search that compares with it takes the wrong branch, and a page
may end too early. But such a search ends beside the corrupt row. Therefore a row counts as missing only if
both neighbours of its place are intact: their keys equal the keys in their items. Each end of a page is
checked like this. A partition's last row is remembered after its check, and pages that reach it are complete.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import orjson

from tidemark.log.pack_format import fast_zlib
from tidemark.log.schema import PK, SK, TTL, Item, Key, make_key
from tidemark.protocol.errors import Damaged

crc32: Final[Callable[..., int]] = fast_zlib().crc32
#: A page of a query ends with the first item beyond this size: DynamoDB's 1 MB, enlarged by a third because
#: bodies are base64 here.
PAGE_BYTES: Final = 1024 * 1024 * 4 // 3
#: The most partitions whose last row is remembered.
_MOST_REMEMBERED: Final = 10_000

_INSERT: Final = "INSERT OR IGNORE INTO items (pk, sk, item, ttl, crc) VALUES (?, ?, ?, ?, ?)"
_REPLACE: Final = "INSERT OR REPLACE INTO items (pk, sk, item, ttl, crc) VALUES (?, ?, ?, ?, ?)"
#: Casts for damaged rows, which may have another type or invalid UTF-8. A key of another type reads as NULL.
_ITEM: Final = "CAST(coalesce(item, '') AS BLOB)"
_KEY: Final = "CASE typeof(pk) || typeof(sk) WHEN 'texttext' THEN CAST(pk || char(10) || sk AS BLOB) END"
_SELECT: Final = "SELECT {}, {} FROM items "
_ROWS: Final = _SELECT.format(_ITEM, "crc") + "WHERE {}"
_KEYS: Final = _SELECT.format(_KEY, _ITEM) + "{} LIMIT {}"
ALL_ROWS: Final = _SELECT.format(_KEY, _ITEM + ", crc, ttl")
_FIND: Final = _ROWS.format("pk = ? AND sk = ?")
_UP: Final = _ROWS.format("pk = ? AND sk BETWEEN ? AND ? ORDER BY sk LIMIT ?")
_DOWN: Final = _ROWS.format("pk = ? AND sk BETWEEN ? AND ? ORDER BY sk DESC LIMIT ?")
_DELETE: Final = "DELETE FROM items WHERE pk = ? AND sk = ?"
_EXPIRED: Final = "SELECT CAST(pk AS BLOB), CAST(sk AS BLOB) FROM items WHERE ttl < ? LIMIT 1000"
_BESIDE: Final = "WHERE (pk, sk) {} (?, ?) ORDER BY pk {}, sk {}"
#: The rows beside a place. These queries leave out rows whose key is NULL;
_BEFORE: Final = _KEYS.format(_BESIDE.format("<", "DESC", "DESC"), 1)
_UP_TO: Final = _KEYS.format(_BESIDE.format("<=", "DESC", "DESC"), 1)
_FROM: Final = _KEYS.format(_BESIDE.format(">=", "ASC", "ASC"), 1)
_BEHIND: Final = _KEYS.format(_BESIDE.format(">", "ASC", "ASC"), 1)
#: these two queries include them.
_THIS_AND_NEXT: Final = _KEYS.format("WHERE pk = ? AND sk >= ? ORDER BY sk", 2)
_FIRST: Final = _KEYS.format("ORDER BY pk, sk", 1)

Place = tuple[str, str]
"""A row's partition key and sort key."""


class Range(NamedTuple):
    """A range of one partition, by the bounds of its sort keys."""

    pk: str
    lowest: str
    highest: str
    backward: bool = False

    def has(self, place: Place | None) -> bool:
        return place is not None and place[0] == self.pk and self.lowest <= place[1] <= self.highest


class Rows:
    """Reads and writes rows. Raises Damaged if a row is damaged, or may be missing."""

    def __init__(self) -> None:
        #: By partition: the last sort key. Only rows that this object wrote since may follow.
        self._last: dict[str, str] = {}

    # --- reading ---

    def find(self, db: sqlite3.Connection, key: Key) -> Item | None:
        pk, sk = place = place_of(key)
        found = db.execute(_FIND, place).fetchone()
        if found is None:
            _check_place(db, place)
            return None
        stored, crc = found
        item: Item = orjson.loads(stored) if crc32(stored) == crc else decoded(place, stored, crc)
        if item[SK]["S"] != sk or item[PK]["S"] != pk:
            raise damaged_row(place, "it has the key of another")
        return item

    def between(
        self, db: sqlite3.Connection, asked: Range, limit: int | None, attributes: Sequence[str] = ()
    ) -> tuple[list[Item], bool]:
        """Return a page of the range, and whether the range has more."""
        items, more, first, last = _read(db, asked, limit, attributes)
        known = self._last.get(asked.pk)
        if asked.backward:
            if first not in (asked.highest, known):
                self._learn(asked, first, _beside(db, _BEHIND, asked.pk, asked.highest))
            if not more:
                _check_edge(db, asked, last, _FROM, _BEFORE)
        else:
            if items and first != asked.lowest:
                _beside(db, _BEFORE, asked.pk, asked.lowest)
            if not more and (
                known is None or (last or asked.lowest) < known or asked.lowest == known != last
            ):
                self._learn(asked, last, _check_edge(db, asked, last, _UP_TO, _BEHIND))
        return items, more

    def _learn(self, asked: Range, last: str, behind: Place | None) -> None:
        """Remember a partition's last row, unless `behind`, the next row, is in the same partition."""
        if last and (behind is None or behind[0] != asked.pk):
            if len(self._last) >= _MOST_REMEMBERED:
                self._last.clear()
            self._last[asked.pk] = last

    def expired(self, db: sqlite3.Connection, seconds: int) -> list[Key]:
        """Up to 1,000 keys of items whose `ttl` has passed. The index may be corrupt, so the item decides."""
        found = []
        for place in db.execute(_EXPIRED, (seconds,)).fetchall():
            key = make_key(*(str(part, "utf-8", "replace") for part in place))
            with suppress(Damaged):
                item = self.find(db, key)
                if item is not None and TTL in item and int(item[TTL]["N"]) < seconds:
                    found.append(key)
        return found

    # --- writing ---

    def insert(self, db: sqlite3.Connection, item: Item) -> bool:
        """Insert the item unless its key exists. Return whether the item was inserted."""
        pk, sk = place_of(item)
        if sk > self._last.get(pk, sk):
            self._last[pk] = sk
        else:
            self._learn(Range(pk, sk, sk), sk, _check_place(db, (pk, sk)))
        return bool(db.execute(_INSERT, _row(item)).rowcount)

    def replace(self, db: sqlite3.Connection, item: Item) -> None:
        """Write the item, over an existing one with its key. The caller has searched for that key before."""
        pk, sk = place_of(item)
        if sk > self._last.get(pk, sk):
            self._last[pk] = sk
        db.execute(_REPLACE, _row(item))

    def drop(self, db: sqlite3.Connection, key: Key) -> bool:
        self._last.pop(key[PK]["S"], None)
        return bool(db.execute(_DELETE, place_of(key)).rowcount)


def _read(
    db: sqlite3.Connection, asked: Range, limit: int | None, attributes: Sequence[str]
) -> tuple[list[Item], bool, str, str]:
    """Return a page, whether there is more, and the sort keys of the page's first and last item. A page with
    at least one item ends before a damaged row."""
    items, size, (pk, lowest, highest, backward) = list[Item](), 0, asked
    first = last = ""
    bounds = (pk, lowest, highest, -1 if limit is None else limit)
    try:
        for stored, crc in db.execute(_DOWN if backward else _UP, bounds):
            if size > PAGE_BYTES:
                return items, True, first, last
            if crc32(stored) == crc:
                item: Item = orjson.loads(stored)
            else:
                item = decoded((pk, last or lowest), stored, crc)
            last = item[SK]["S"]
            if item[PK]["S"] != pk or not lowest <= last <= highest:
                raise damaged_row((pk, lowest), "a search for it leads elsewhere")
            first = first or last
            items.append(projected(item, attributes) if attributes else item)
            size += len(stored)
    except Damaged:
        if not items:
            raise
        return items, True, first, last
    return items, len(items) == limit, first, last


def place_of(key: Key) -> Place:
    return key[PK]["S"], key[SK]["S"]


def projected(item: Item, attributes: Sequence[str]) -> Item:
    return {name: item[name] for name in attributes if name in item} if attributes else item


def _row(item: Item) -> tuple[str, str, bytes, int | None, int]:
    """The columns of an item's row. The stored item begins with the key, which `sound_key` relies on."""
    ttl, (pk, sk) = item.get(TTL), place_of(item)
    stored = orjson.dumps({PK: item[PK], SK: item[SK]} | item)
    return pk, sk, stored, int(ttl["N"]) if ttl else None, crc32(stored)


class RowFault(LookupError):
    """The cause of a Damaged: names the damaged row and its fault."""

    def __init__(self, place: Place, fault: str) -> None:
        super().__init__(f"a row is damaged at or next to {' '.join(place)!r}: {fault}")
        self.pk = place[0]


def damaged_row(place: Place, fault: str) -> Damaged:
    """The error for a row at or behind a place. `Database` logs it."""
    damaged = Damaged()
    damaged.__cause__ = RowFault(place, fault)
    return damaged


def decoded(place: Place, stored: bytes, crc: int) -> Item:
    """Decode the item of a row at or behind a place. Raises Damaged."""
    if crc32(stored) != crc:
        raise damaged_row(place, "it does not fit its checksum")
    try:
        item: Item = orjson.loads(stored)
        place_of(item)
    except (ValueError, TypeError, KeyError) as fault:
        reason = f"it cannot be read: {fault}"
    else:
        return item
    raise damaged_row(place, reason)


def sound_key(key: bytes | None, stored: bytes) -> Place | None:
    """Return a row's key (`_KEY`) if its item has the same key; else None. Nothing else is checked."""
    pk, _, sk = (key or b"").decode(errors="replace").partition("\n")
    if stored.startswith(orjson.dumps(make_key(pk, sk))[:-1]):
        return pk, sk
    try:
        place = place_of(orjson.loads(stored))
    except (ValueError, TypeError, KeyError):
        return None
    # A stream's name may contain a line end too.
    return place if "\n".join(place).encode() == key else None


def _beside(db: sqlite3.Connection, side: str, pk: str, sk: str) -> Place | None:
    """Return the place of the next row on one side of a place. Raises Damaged if that row's key differs from
    its item's key, or if another row lies between."""
    places = [sound_key(*row) for row in db.execute(side, (pk, sk))]
    if side in {_BEFORE, _UP_TO}:
        there = db.execute(_THIS_AND_NEXT, places[0]) if places and places[0] else db.execute(_FIRST)
        found = [sound_key(*row) for row in there]
        if None in found or (places and found[:1] != places):
            places = [None]
    if None in places:
        raise damaged_row((pk, sk), "a row beside it has another key than its item")
    return places[0] if places else None


def _check_place(db: sqlite3.Connection, place: Place) -> Place | None:
    """Return the next place. Raises Damaged if a corrupt neighbour can hide a row at this place."""
    _beside(db, _BEFORE, *place)
    return _beside(db, _BEHIND, *place)


def _check_edge(db: sqlite3.Connection, asked: Range, last: str, inside: str, outside: str) -> Place | None:
    """Return the next place outside of the range. Raises Damaged unless the range ends with `last`."""
    edge = asked.lowest if asked.backward else asked.highest
    found = _beside(db, inside, asked.pk, edge)
    if found != (asked.pk, last) if last else asked.has(found):
        raise damaged_row((asked.pk, last or edge), "rows behind it are not found")
    return _beside(db, outside, asked.pk, edge)


def checked_rows(db: sqlite3.Connection) -> Iterator[tuple[Item, str]]:
    """Yield all items in stored order, each with the fault of its row, or an empty text."""
    for key, stored, crc, ttl in db.execute(ALL_ROWS):
        place = (key or b"").decode(errors="replace").replace("\n", " ")
        try:
            item: Item = orjson.loads(stored)
            own, expires = place_of(item), item.get(TTL)
        except (ValueError, TypeError, KeyError) as fault:
            yield {}, f"the row {place!r} cannot be read: {fault}"
            continue
        is_right = {
            "does not fit its checksum": crc == crc32(stored),
            f"has the item of {' '.join(own)!r}": sound_key(key, stored) == own,
            "has another time to live than its item": ttl == (int(expires["N"]) if expires else None),
        }
        yield item, next((f"the row {place!r} {fault}" for fault, right in is_right.items() if not right), "")

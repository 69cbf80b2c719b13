"""`log.table.Table` in a SQLite database: a row for each item, ordered by the keys' bytes (`rows.py`)."""

from __future__ import annotations

import logging
import operator
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from tidemark.engine.database import Database
from tidemark.engine.rows import Range, Rows, crc32, place_of, projected
from tidemark.log import table as tables
from tidemark.log.schema import INCARNATION, Item, Key

_log: Final = logging.getLogger("tidemark")

_Written = Callable[[sqlite3.Connection, str, Key], None]
"""Called in the transaction that writes an item, with INSERT, MODIFY or REMOVE and the item's key."""


class EmbeddedTable:
    """The table. `written` is called for each write, in the transaction of the write."""

    def __init__(self, database: Database, written: _Written = lambda *_: None) -> None:
        self.database = database
        self.written = written
        self._rows = Rows()

    def get(self, key: Key) -> Item | None:
        return self.database.operate(partial(self._rows.find, key=key), writes=False)

    def get_many(self, keys: Sequence[Key], attributes: Sequence[str] = ()) -> list[Item]:
        def find(db: sqlite3.Connection) -> list[Item]:
            found = (self._rows.find(db, key) for key in keys)
            return [projected(item, attributes) for item in found if item is not None]

        return self.database.operate(find, writes=False)

    def put(self, item: Item, condition: tables.Condition | None = None) -> None:
        self.database.operate(lambda db: self._put(db, item, condition), writes=True)

    def _put(self, db: sqlite3.Connection, item: Item, condition: tables.Condition | None) -> None:
        if condition is tables.IF_ABSENT and self._rows.insert(db, item):
            self.written(db, "INSERT", item)
            return
        existing = self._rows.find(db, item)
        if condition is not None and not holds(condition, existing or {}):
            raise tables.ConditionFailed(existing)
        self._store(db, item, existing)

    def raise_number(self, key: Key, name: str, value: int, incarnation: str) -> None:
        higher = tables.AllOf(tables.equals(INCARNATION, incarnation), tables.Compared(name, "<", value))

        def update(db: sqlite3.Connection) -> None:
            existing = self._rows.find(db, key)
            if holds(higher, existing or {}):
                self._store(db, _updated(tables.Update(key, {name: {"N": str(value)}}), existing), existing)
            elif existing is None or existing.get(INCARNATION) != {"S": incarnation}:
                raise tables.ConditionFailed(existing)

        self.database.operate(update, writes=True)

    def delete(self, key: Key, condition: tables.Condition | None = None) -> None:
        def delete(db: sqlite3.Connection) -> None:
            existing = self._rows.find(db, key)
            if condition is not None and not holds(condition, existing or {}):
                raise tables.ConditionFailed(existing)
            self._drop(db, key)

        self.database.operate(delete, writes=True)

    def delete_many(self, keys: Sequence[Key]) -> None:
        def delete(db: sqlite3.Connection) -> None:
            for key in keys:
                self._drop(db, key)

        self.database.operate(delete, writes=True)

    def transact(self, writes: Sequence[tables.Write]) -> None:
        self.database.operate(lambda db: self._transact(db, writes), writes=True)

    def _transact(self, db: sqlite3.Connection, writes: Sequence[tables.Write]) -> None:
        keys = [key_of(write) for write in writes]
        assert len({place_of(key) for key in keys}) == len(keys) <= tables.MAX_WRITES, (
            "as DynamoDB takes them"
        )
        existing = [self._rows.find(db, key) for key in keys]
        failed = [
            write.condition is not None and not holds(write.condition, found or {})
            for write, found in zip(writes, existing, strict=True)
        ]
        if any(failed):
            there = [found if fails else None for found, fails in zip(existing, failed, strict=True)]
            raise tables.TransactionRefused(failed, there)
        for write, found in zip(writes, existing, strict=True):
            change = write.change
            item = _updated(change, found) if isinstance(change, tables.Update) else change
            self._store(db, item, found)

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
        asked = Range(pk, at_least, at_most, backward)
        return self.database.operate(
            lambda db: self._rows.between(db, asked, limit, attributes), writes=False
        )

    def remove_expired(self, now_ms: int) -> int:
        """Remove up to 1,000 items whose `ttl` has passed, as DynamoDB does later. Return their number."""

        def remove(db: sqlite3.Connection) -> int:
            found = self._rows.expired(db, now_ms // 1000)
            for key in found:
                self._drop(db, key)
            return len(found)

        return self.database.operate(remove, writes=True)

    def _store(self, db: sqlite3.Connection, item: Item, existing: Item | None) -> None:
        self._rows.replace(db, item)
        if existing != item:
            self.written(db, "INSERT" if existing is None else "MODIFY", item)

    def _drop(self, db: sqlite3.Connection, key: Key) -> None:
        if self._rows.drop(db, key):
            self.written(db, "REMOVE", key)


def holds(condition: tables.Condition, item: Item) -> bool:
    """Whether an item meets a condition. A missing item counts as an item without attributes."""
    match condition:
        case tables.Present(name):
            return name in item
        case tables.Missing(name):
            return name not in item
        case tables.AllOf(parts):
            return all(holds(part, item) for part in parts)
        case tables.AnyOf(parts):
            return any(holds(part, item) for part in parts)
        case tables.Compared(name, by, value):
            return _compares(item.get(name), by, value)


_COMPARATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
}


def _compares(found: Item | None, by: str, value: str | int) -> bool:
    """Whether the comparison holds for an attribute and a value. Texts are compared as bytes."""
    if found is None or ("S" if isinstance(value, str) else "N") not in found:
        return by == "<>"
    if isinstance(value, str):
        return _COMPARATORS[by](found["S"].encode(), value.encode())
    return _COMPARATORS[by](int(found["N"]), value)


def key_of(write: tables.Write) -> Key:
    return write.change.key if isinstance(write.change, tables.Update) else write.change


def _updated(update: tables.Update, existing: Item | None) -> Item:
    item = dict(existing or update.key) | update.sets
    for name, change in update.adds.items():
        item[name] = {"N": str(int(item.get(name, {"N": "0"})["N"]) + change)}
    return item


_SEND: Final = "INSERT INTO messages (topic, due_ms, body, crc) VALUES (?, ?, ?, ?)"
_TAKE: Final = (
    "SELECT id, CAST(body AS BLOB), crc FROM messages WHERE topic = ? AND due_ms <= ? "
    "ORDER BY due_ms, id LIMIT ?"
)
_HIDE: Final = "UPDATE messages SET due_ms = ? WHERE id = ?"
_DONE: Final = "DELETE FROM messages WHERE id = ?"
_NEXT: Final = "SELECT min(due_ms) FROM messages WHERE topic = ?"


_MESSAGES: Final = "SELECT id, CAST(topic AS BLOB), CAST(body AS BLOB), crc FROM messages"


def _message_crc(topic: bytes, body: bytes) -> int:
    return crc32(body, crc32(topic))


def faults_of_messages(db: sqlite3.Connection) -> Iterator[str]:
    for message_id, topic, body, crc in db.execute(_MESSAGES):
        if crc != _message_crc(topic or b"", body or b""):
            yield f"message {message_id} does not fit its checksum"


class QueuedMessage(NamedTuple):
    id: int
    body: str


class EmbeddedQueue:
    def __init__(self, database: Database, topic: str, clock_ms: Callable[[], int]) -> None:
        self._database = database
        self._topic = topic
        self._clock_ms = clock_ms
        #: Set when there may be messages to take.
        self.news = threading.Event()

    def send(self, bodies: Sequence[str], delay_seconds: int = 0) -> None:
        self._database.operate(lambda db: self.send_with(db, bodies, delay_seconds), writes=True)

    def send_with(self, db: sqlite3.Connection, bodies: Sequence[str], delay_seconds: int = 0) -> None:
        """Send messages as part of another operation."""
        due_ms = self._clock_ms() + 1000 * delay_seconds
        topic = self._topic.encode()
        rows = [(self._topic, due_ms, body, _message_crc(topic, body.encode())) for body in bodies]
        db.executemany(_SEND, rows)
        self._database.then(self.news.set)

    def take(self, limit: int, hidden_seconds: float) -> list[QueuedMessage]:
        """Take up to `limit` due messages. A message that is not `done` is due again after `hidden_seconds`.
        A damaged message stays in the queue, and is logged each time when it is due."""
        now_ms = self._clock_ms()

        def take(db: sqlite3.Connection) -> list[QueuedMessage]:
            found = db.execute(_TAKE, (self._topic, now_ms, limit)).fetchall()
            db.executemany(_HIDE, [(now_ms + int(1000 * hidden_seconds), row[0]) for row in found])
            return [QueuedMessage(row[0], row[1].decode()) for row in found if self._is_sound(*row)]

        return self._database.operate(take, writes=True) if self.next_ms() is not None else []

    def _is_sound(self, message_id: int, body: bytes, crc: int) -> bool:
        if crc == _message_crc(self._topic.encode(), body):
            return True
        _log.error("message %d of %s is damaged, and is not delivered", message_id, self._topic)
        return False

    def done(self, messages: Sequence[QueuedMessage]) -> None:
        def remove(db: sqlite3.Connection) -> None:
            db.executemany(_DONE, [(each.id,) for each in messages])

        if messages:
            self._database.operate(remove, writes=True)

    def next_ms(self) -> int | None:
        """The time when the next message is due; None without messages."""
        asked = self._database.operate(lambda db: db.execute(_NEXT, (self._topic,)).fetchone(), writes=False)
        next_ms: int | None = asked[0]
        return next_ms

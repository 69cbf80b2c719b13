"""Work for later, in the same database: sent in the transaction that makes it necessary, so that neither a
kill nor a failed commit loses or invents any. SQS and the table's stream do this on AWS."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tidemark.engine.database import Database

_SEND: Final = "INSERT INTO messages (topic, due_ms, body) VALUES (?, ?, ?)"
_TAKE: Final = "SELECT id, body FROM messages WHERE topic = ? AND due_ms <= ? ORDER BY due_ms, id LIMIT ?"
_HIDE: Final = "UPDATE messages SET due_ms = ? WHERE id = ?"
_DONE: Final = "DELETE FROM messages WHERE id = ?"
_NEXT: Final = "SELECT min(due_ms) FROM messages WHERE topic = ?"


class Message(NamedTuple):
    id: int
    body: str


class EmbeddedQueue:
    """The messages of one topic."""

    def __init__(self, database: Database, topic: str, clock_ms: Callable[[], int]) -> None:
        self._database = database
        self._topic = topic
        self._clock_ms = clock_ms
        #: Set when there may be something to take.
        self.news = threading.Event()

    def send(self, bodies: Sequence[str], delay_seconds: int = 0) -> None:
        self._database.operate(lambda db: self.send_with(db, bodies, delay_seconds), writes=True)

    def send_with(self, db: sqlite3.Connection, bodies: Sequence[str], delay_seconds: int = 0) -> None:
        """As part of another operation."""
        due_ms = self._clock_ms() + 1000 * delay_seconds
        db.executemany(_SEND, [(self._topic, due_ms, body) for body in bodies])
        self._database.then(self.news.set)

    def take(self, limit: int, hidden_seconds: float) -> list[Message]:
        """Up to `limit` that are due. They come again after `hidden_seconds`, unless they are `done`."""
        now_ms = self._clock_ms()

        def take(db: sqlite3.Connection) -> list[Message]:
            found = [Message(*row) for row in db.execute(_TAKE, (self._topic, now_ms, limit))]
            db.executemany(_HIDE, [(now_ms + int(1000 * hidden_seconds), each.id) for each in found])
            return found

        return self._database.operate(take, writes=True) if self.next_ms() is not None else []

    def done(self, messages: Sequence[Message]) -> None:
        def remove(db: sqlite3.Connection) -> None:
            db.executemany(_DONE, [(each.id,) for each in messages])

        if messages:
            self._database.operate(remove, writes=True)

    def next_ms(self) -> int | None:
        """When the next one is due; None where there is none."""
        asked = self._database.operate(lambda db: db.execute(_NEXT, (self._topic,)).fetchone(), writes=False)
        next_ms: int | None = asked[0]
        return next_ms

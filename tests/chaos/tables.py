"""Compacted streams: each reader ends with the rows as they are, whatever a compaction has removed."""

import itertools
import json
import time
from typing import Any, Final

from tests.chaos.client import JSON
from tests.chaos.judge import LOST
from tests.chaos.lifecycles import Lifecycle
from tests.chaos.scene import VANISHED, Insisting, Table

_TOMBSTONE_SECONDS: Final = 30
#: A reader that took longer over its way to the tail may lack a deletion, and begins again.
_WINDOW_SECONDS: Final = 20.0
_COMPACT: Final = {
    "Stream-Compact": "last-by-key",
    "Stream-Compact-Key": "/key",
    "Stream-Compact-After": "0",
    "Stream-Compact-Tombstones": str(_TOMBSTONE_SECONDS),
}
_KEYS: Final = 30
_CHANGES_BETWEEN_READS: Final = 25
Rows = dict[str, int]


class TableKeeper(Lifecycle):
    """Alone on its stream, it changes and deletes rows. It reads on from where it has read before, and from
    the beginning."""

    async def live(self, name: str) -> None:
        path = f"/v1/stream/{name}"
        await self.create(path, _COMPACT)
        rows, known, offset, read_at = Rows(), Rows(), 0, time.monotonic()
        for number in itertools.count():
            await self._change(path, number, rows)
            if number % _CHANGES_BETWEEN_READS == 0:
                began = time.monotonic()
                offset = await read_rows(self, path, known, offset)
                if time.monotonic() - read_at > _WINDOW_SECONDS:
                    known, offset = Rows(), 0
                else:
                    _compare(self, path, "rows of a reader that goes on", rows, known)
                    read_at = began
                await check_table(self, Table(path, rows))
            if self.scene.is_over:
                break
            await self.pause(0.05)
        self.scene.kept_tables.append(Table(path, rows))

    async def _change(self, path: str, number: int, rows: Rows) -> None:
        """One append of some changes."""
        changes: list[dict[str, Any]] = []
        for _ in range(self.chance.choice((1, 1, 1, 4))):
            key = f"row-{self.chance.randrange(_KEYS)}"
            if self.chance.random() < 0.2:
                changes.append({"key": key, "headers": {"operation": "delete"}})
            else:
                changes.append({"key": key, "number": number})
        claim = {"Producer-Id": self.name, "Producer-Epoch": "0", "Producer-Seq": str(number)}
        body = json.dumps(changes).encode()
        await self.insist(
            "POST", path, body, JSON | claim, what="append", at_first={200}, later={204}, wrong=VANISHED
        )
        _apply(changes, rows)
        self.scene.acknowledged += 1
        self.scene.messages += len(changes)


def _apply(changes: list[dict[str, Any]], rows: Rows) -> None:
    for change in changes:
        if "number" in change:
            rows[change["key"]] = change["number"]
        else:
            rows.pop(change["key"], None)


async def read_rows(reader: Insisting, path: str, rows: Rows, offset: int) -> int:
    """Puts what is behind the offset into the rows; the tail."""
    while True:
        answer = await reader.insist(
            "GET", f"{path}?offset={offset:016d}", what="catch-up", at_first={200}, wrong=VANISHED
        )
        _apply(json.loads(answer.body), rows)
        offset = answer.next_offset
        if answer.up_to_date:
            return offset


async def check_table(reader: Insisting, table: Table) -> None:
    """Whoever begins at the beginning has these rows, and no others."""
    while True:
        began, found = time.monotonic(), Rows()
        await read_rows(reader, table.path, found, 0)
        if time.monotonic() - began < _WINDOW_SECONDS:
            break
    _compare(reader, table.path, "rows of a new reader", table.rows, found)
    head = await reader.insist("HEAD", table.path, what="head", at_first={200}, wrong=VANISHED)
    if "stream-compacted-offset" in head.headers:
        reader.scene.compacted.add(table.path)


def _compare(reader: Insisting, path: str, what: str, expected: Rows, found: Rows) -> None:
    right, told = (json.dumps(each, sort_keys=True).encode() for each in (expected, found))
    reader.scene.compare(path, what, right, told, LOST)

"""The check of compacted streams finds a row that is not as its changes make it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.chaos.client import Answer
from tests.chaos.judge import LOST
from tests.chaos.scene import Insisting, Scene, Table
from tests.chaos.tables import check_table

ROWS = {"a": 3, "b": 1}
INSERTED = [{"key": "b", "number": 1}, {"key": "a", "number": 3}]
DELETED = [{"key": "c", "number": 2}, {"key": "c", "headers": {"operation": "delete"}}]


class Answering(Insisting):
    """A page for each change, at offsets of its own."""

    def __init__(self, changes: list[Any]) -> None:
        super().__init__(Scene(0, 0, 7), "reader")
        self._changes = changes

    async def insist(self, method: str, path: str, *_: Any, **__: Any) -> Answer:
        if method == "HEAD":
            return Answer(200, {"stream-compacted-offset": f"{9:016}"}, b"")
        place = int(path.partition("=")[2])
        told = {"stream-next-offset": f"{place + 1:016}"}
        at_tail = {"stream-up-to-date": "true"} if place + 1 == len(self._changes) else {}
        return Answer(200, told | at_tail, json.dumps([self._changes[place]]).encode())


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        (INSERTED, []),
        (INSERTED + DELETED, []),
        (DELETED[:1] + INSERTED + DELETED[1:], []),
        (INSERTED[:1], [LOST]),
        (INSERTED + DELETED[:1], [LOST]),
        ([*INSERTED, {"key": "a", "number": 2}], [LOST]),
    ],
)
def test_rows_are_those_of_the_last_changes(changes: list[Any], kinds: list[str]) -> None:
    reader = Answering(changes)
    asyncio.run(check_table(reader, Table("rows", ROWS)))
    assert [violation.kind for violation in reader.scene.recordings.violations] == kinds
    assert reader.scene.compacted == {"rows"}

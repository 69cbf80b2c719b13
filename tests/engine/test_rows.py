"""Bits that flip in the pages of the table: a row is found as it was written, or Damaged is raised."""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tidemark.engine.database import Database
from tidemark.engine.sqlite_file import UnusableDatabase
from tidemark.engine.table import EmbeddedTable
from tidemark.log.due import due_entries, schedule
from tidemark.log.records import Due, DueKind
from tidemark.log.schema import Item
from tidemark.log.table import IF_ABSENT, ConditionFailed, Write
from tidemark.protocol.errors import Damaged, StorageUnavailable
from tidemark.protocol.stream_key import StreamKey

#: The name of a stream may have a line end.
PARTITIONS = ("bucket/v1", "log/v1/a#1", "log/v1/b\nb#1", "log/v1/c#1")
ROWS = 40


def item_of(pk: str, number: int) -> Item:
    """Of such a size that a page has some twenty of them, and the tree two levels."""
    filler = {"S": f"{number} " * 80}
    return {"pk": {"S": pk}, "sk": {"S": f"{number * 10:016d}"}, "b": filler, "é": {"N": str(number)}}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("rows") / "tidemark.db"
    table = EmbeddedTable(Database(path))
    for pk in PARTITIONS:
        table.transact([Write(item_of(pk, number)) for number in range(ROWS)])
    table.database.close()
    return path.read_bytes()


REFUSED = "refused"


def everything(table: EmbeddedTable, pk: str, begin: str) -> list[Item]:
    """Page by page. A page may end before what is damaged, and then the next one is refused."""
    items, more = table.query(pk, at_least=begin)
    while more and items:
        found, more = table.query(pk, at_least=f"{items[-1]['sk']['S']} ")
        items += found
    return items


def put_and_get(table: EmbeddedTable, item: Item) -> Item | None:
    table.put(item, IF_ABSENT)
    return table.get(item)


def calls(table: EmbeddedTable) -> Iterator[Callable[[], Any]]:
    """What is asked of each store, in this order: of a partition first from the middle, or from its end."""
    for number, pk in enumerate(PARTITIONS):
        yield partial(everything, table, pk, f"{number * 130:016d}")
        yield partial(table.query, pk, limit=1, backward=True)
        yield partial(everything, table, pk, "0")
        yield partial(table.query, pk, at_least=f"{ROWS * 10:016d}")
        yield partial(table.query, pk, at_least="0", at_most=f"{200:016d}", limit=1, backward=True)
        for row in (*range(ROWS), -1):
            yield partial(table.get, item_of(pk, row))
        for row in (ROWS, 7):
            yield partial(put_and_get, table, item_of(pk, row))


def answer(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ConditionFailed as refused:
        return "there is", refused.existing
    except (Damaged, StorageUnavailable):
        return REFUSED


def answers(path: Path) -> list[Any]:
    try:
        table = EmbeddedTable(Database(path))
    except UnusableDatabase:
        return [REFUSED]
    found = [answer(call) for call in calls(table)]
    table.database.close()
    return found


def places(data: bytes, kind: str) -> list[int]:
    if kind == "key":
        keys = re.finditer(rb"(?:bucket/v1|log/v1/[abc]#1)\d{16}", data)
        return [place for found in keys for place in range(*found.span())]
    return [place for place in range(len(data)) if data[place]]


@pytest.mark.parametrize(("kind", "flips"), [("key", 40), ("any", 60)])
def test_a_row_is_found_whole_or_not_at_all(stored: bytes, tmp_path: Path, kind: str, flips: int) -> None:
    chance, path, where, refused = random.Random(kind), tmp_path / "tidemark.db", places(stored, kind), 0
    path.write_bytes(stored)
    expected = answers(path)
    assert REFUSED not in expected
    for _ in range(flips):
        place, bit = chance.choice(where), chance.randrange(8)
        damaged = bytearray(stored)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        found = answers(path)
        refused += REFUSED in found
        wrong = [
            number
            for number, (got, right) in enumerate(zip(found, expected, strict=False))
            if got not in (REFUSED, right)
        ]
        assert not wrong, f"{kind} at {place}, bit {bit}: calls {wrong}"
    assert refused > flips // 4


@pytest.mark.parametrize(
    ("place", "most_missing"), [(rb'"kd"', 1), (rb'"sk":{"S":"0', 3), (rb"due/p\d0001", 3)]
)
def test_a_damaged_entry_hides_no_other_entry_of_the_janitors_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: bytes, most_missing: int
) -> None:
    """A flipped bit of an item hides that entry; one of a key may hide its neighbours too. However often the
    queue is read, the log has one line for each partition."""
    path, now_ms = tmp_path / "tidemark.db", 1_790_000_000_000
    table = EmbeddedTable(Database(path))
    dues = [
        Due(DueKind.PACK, StreamKey("v1", f"s{number}"), "one", now_ms - 60_000 * number, str(number))
        for number in range(60)
    ]
    for due in dues:
        schedule(table, due)
    table.database.close()
    data = bytearray(path.read_bytes())
    found = [match.end() for match in re.finditer(place, bytes(data))]
    data[found[len(found) // 2] - 1] ^= 4
    path.write_bytes(data)
    with closing(Database(path)) as database:
        table = EmbeddedTable(database)
        for _ in range(2):
            entries = {due.mark for due in due_entries(table, now_ms, packing=True)}
            assert len(entries) >= 60 - most_missing
    partitions = [message.split()[8] for message in caplog.messages]
    assert 1 <= len(partitions) == len(set(partitions)), caplog.messages

"""The table of a simulation: the engine's, at the seam where requests leave the process (`send`)."""

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.stack.dynamodb import DynamoDBProtocol, all_items
from tidemark.engine.database import Database
from tidemark.engine.sqlite_file import MEMORY
from tidemark.engine.table import EmbeddedTable
from tidemark.log.schema import Item, Key


class SimulatedTable(DynamoDBProtocol):
    """In memory, or in a file. `now_ms` is what items and the tokens of transactions age by."""

    def __init__(self, now_ms: Callable[[], int], path: Path | str = MEMORY) -> None:
        super().__init__(EmbeddedTable(Database(path)), now_ms)
        self._now_ms = now_ms

    def items(self) -> Iterator[Item]:
        yield from all_items(self.table)

    def remove_expired(self) -> None:
        while self.table.remove_expired(self._now_ms()):
            pass

    def find(self, key: Key) -> Item | None:
        return self.table.get({"pk": key["pk"], "sk": key["sk"]})

    def store(self, item: Item) -> None:
        self.table.put(item)

    def drop(self, key: Key) -> None:
        self.table.delete(key)

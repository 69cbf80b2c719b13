"""DynamoDB for `VIA=lambda` and for tests: the embedded engine at a port, on a thread of this process."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from tidemark.engine.database import MEMORY, Database
from tidemark.engine.dynamodb import DynamoDBProtocol
from tidemark.engine.table import EmbeddedTable
from tidemark.log.schema import PK, SK, Key
from tidemark.server.dynamodb_port import DynamoDBPort
from tidemark.server.http_server import loop_factory, serve
from tidemark.server.ports import LOOPBACK, listening_socket, port_of
from tidemark.service.stores import wall_clock_ms

_READY_SECONDS: Final = 60.0
_GRACE_SECONDS: Final = 0.05
_SUFFIX: Final = ".db"

Changed = Callable[[str, dict[str, Any]], None]
"""Called with a table's name and the record of each change, once it is committed."""


class EmbeddedDynamoDB:
    """Tables as files of `directory`, or in memory, at `port`, or any. `changed` is what the tables' streams
    are on AWS. Raises OSError where the port is taken."""

    def __init__(self, directory: Path | None, changed: Changed, port: int = 0) -> None:
        self._directory = directory
        self._changed = changed
        self._listener = listening_socket(LOOPBACK, port)
        self._ready = threading.Event()
        self._stack = ExitStack()
        self.tables: dict[str, DynamoDBProtocol] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="tidemark-dynamodb", daemon=True)
        self._records = 0

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{port_of(self._listener)}"

    def start(self) -> None:
        """Raises UnusableDatabase."""
        files = self._directory.glob(f"*{_SUFFIX}") if self._directory else ()
        self.tables = {unquote(path.stem): self._open(unquote(path.stem)) for path in files}
        self._thread.start()
        if not self._ready.wait(_READY_SECONDS):
            raise TimeoutError("the embedded engine does not answer at its port")

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
        self._stack.close()
        self._listener.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        with self._stack:
            for table in self.tables.values():
                self._served(table)
            port = DynamoDBPort(self.tables, lambda name: self._served(self._open(name)))
            await serve(port, self._listener, self._ready.set, self._stopping, grace_seconds=_GRACE_SECONDS)

    def _served(self, table: DynamoDBProtocol) -> DynamoDBProtocol:
        if table.table.database.path != MEMORY:  # What is in memory needs no turns.
            self._stack.enter_context(table.table.database.serving())
        return table

    def _open(self, name: str) -> DynamoDBProtocol:
        path = self._directory / f"{quote(name, safe='')}{_SUFFIX}" if self._directory else MEMORY
        database = Database(path)
        self._stack.callback(database.close)

        def written(_db: sqlite3.Connection, event: str, key: Key) -> None:
            record = self._record(event, key)
            database.then(lambda: self._changed(name, record))

        return DynamoDBProtocol(EmbeddedTable(database, written), wall_clock_ms)

    def _record(self, event: str, key: Key) -> dict[str, Any]:
        """As a trigger has it from DynamoDB, of a stream with KEYS_ONLY."""
        self._records += 1
        change = {
            "ApproximateCreationDateTime": time.time(),
            "Keys": {PK: key[PK], SK: key[SK]},
            "SequenceNumber": f"{self._records:021}",
            "SizeBytes": len(key[PK]["S"]) + len(key[SK]["S"]) + len(PK) + len(SK),
            "StreamViewType": "KEYS_ONLY",
        }
        return {
            "eventID": f"{self._records:032x}",
            "eventName": event,
            "eventVersion": "1.1",
            "eventSource": "aws:dynamodb",
            "awsRegion": "us-east-1",
            "eventSourceARN": "arn:aws:dynamodb:us-east-1:000000000000:table/local/stream/0",
            "dynamodb": change,
        }

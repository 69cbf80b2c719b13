"""The embedded engine at a loopback port, in DynamoDB's protocol, with a stream of changes.

Requests are not authenticated, so it listens on loopback, and answers to a loopback name, alone.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote
from zlib import crc32

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tests.stack.dynamodb import DynamoDBProtocol, Refused
from tidemark.aws.clock import CLOCK
from tidemark.engine.database import Database
from tidemark.engine.sqlite_file import MEMORY
from tidemark.engine.table import EmbeddedTable
from tidemark.http.security.origin import is_loopback, name_of
from tidemark.log.schema import PK, SK, Key
from tidemark.protocol.errors import ProtocolError
from tidemark.server import Receive, Scope, Send
from tidemark.server.http_server import loop_factory, serve
from tidemark.server.ports import LOOPBACK, listening_socket, port_of

_TARGET: Final = "x-amz-target"
_VERSION: Final = "DynamoDB_20120810."
_READY_SECONDS: Final = 60.0
_GRACE_SECONDS: Final = 0.05
_SUFFIX: Final = ".db"

Answer = tuple[int, bytes]
Changed = Callable[[str, dict[str, Any]], None]
"""Called with a table's name and the record of each change, once it is committed."""


class DynamoDBServer:
    """Serves tables from a thread of its own; each is a file in `directory`, or in memory without one.
    `changed` replaces the tables' streams of AWS."""

    def __init__(self, directory: Path | None, changed: Changed) -> None:
        self._directory = directory
        self._changed = changed
        self._listener = listening_socket(LOOPBACK, 0)
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
            listener, ready = self._listener, self._ready.set
            await serve(self._application, listener, ready, self._stopping, grace_seconds=_GRACE_SECONDS)

    # --- tables ---

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

        return DynamoDBProtocol(EmbeddedTable(database, written), CLOCK.now_ms)

    def _record(self, event: str, key: Key) -> dict[str, Any]:
        """The record of a change that DynamoDB gives a trigger, if the table's stream is KEYS_ONLY."""
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

    # --- requests ---

    async def _application(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        with suppress(ClientDisconnect):
            status, body = await self._answer(Request(scope, receive))
            headers = {"content-type": "application/x-amz-json-1.0", "x-amz-crc32": str(crc32(body))}
            await Response(body, status, headers)(scope, receive, send)

    async def _answer(self, request: Request) -> Answer:
        if request.method == "GET":
            return 200, b"{}"  # The response of a health check.
        if not is_loopback(name_of(request.headers.get("host", "localhost"))):
            return Refused("AccessDeniedException", "this port answers to loopback names alone").answer
        operation = request.headers.get(_TARGET, "").removeprefix(_VERSION)
        body = await request.body()
        try:
            return await self._carry_out(operation, body)
        except Refused as refusal:
            return refusal.answer
        except (KeyError, TypeError, ValueError) as error:
            return Refused("SerializationException", f"the request cannot be read: {error!r}").answer
        except ProtocolError as error:  # The disk fails.
            return 500, orjson.dumps({"__type": "#InternalServerError", "message": str(error)})

    async def _carry_out(self, operation: str, body: bytes) -> Answer:
        arguments = orjson.loads(body)
        names = set(_tables_of(arguments))
        if len(names) != 1:
            raise Refused("ValidationException", "the embedded engine takes a request for one table")
        name = names.pop()
        if operation == "CreateTable":
            return 200, orjson.dumps({"TableDescription": self._create_table(name, arguments)})
        if name not in self.tables:
            raise Refused("ResourceNotFoundException", f"Requested resource not found: Table: {name}")
        table = self.tables[name]
        if operation == "DescribeTable":
            return 200, orjson.dumps({"Table": _description(name)})
        return await table.table.database.run(lambda: table.send(operation, body))

    def _create_table(self, name: str, asked: dict[str, Any]) -> dict[str, Any]:
        if name in self.tables:
            raise Refused("ResourceInUseException", f"Table already exists: {name}")
        if [each["AttributeName"] for each in asked["KeySchema"]] != [PK, SK]:
            raise Refused("ValidationException", f"the embedded engine has tables by {PK} and {SK} alone")
        self.tables[name] = self._served(self._open(name))
        return _description(name)


def _description(name: str) -> dict[str, Any]:
    return {"TableName": name, "TableStatus": "ACTIVE"}


def _tables_of(arguments: dict[str, Any]) -> Iterator[str]:
    if "TableName" in arguments:
        yield arguments["TableName"]
    yield from arguments.get("RequestItems", ())
    for each in arguments.get("TransactItems", ()):
        for write in each.values():
            yield write["TableName"]

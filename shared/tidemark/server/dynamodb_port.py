"""The engine at a port of its own, in DynamoDB's protocol: an ASGI application.

    AWS_ENDPOINT_URL_DYNAMODB=http://127.0.0.1:8000 aws dynamodb scan --table-name tidemark

Requests are not authenticated, so it listens on loopback, and answers to a loopback name, alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final
from zlib import crc32

import orjson

from tidemark.engine.dynamodb import DynamoDBProtocol, Refused
from tidemark.http.security.open_server import is_loopback, name_of
from tidemark.log.schema import PK, SK, table_definition
from tidemark.protocol.errors import ProtocolError
from tidemark.server import Receive, Scope, Send

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
_TARGET: Final = b"x-amz-target"
_VERSION: Final = "DynamoDB_20120810."

Answer = tuple[int, bytes]


class DynamoDBPort:
    """Serves `tables` by name. CreateTable calls `create`; without it there are no other tables."""

    def __init__(
        self,
        tables: dict[str, DynamoDBProtocol],
        create: Callable[[str], DynamoDBProtocol] | None = None,
    ) -> None:
        self._tables = tables
        self._create = create
        self._of_tables: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "CreateTable": self._create_table,
            "DescribeTable": lambda asked: {"Table": self._description(asked["TableName"])},
            "ListTables": lambda _: {"TableNames": sorted(self._tables)},
            "UpdateTimeToLive": lambda asked: {"TimeToLiveSpecification": asked["TimeToLiveSpecification"]},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, body = await self._answer(scope, receive)
        headers = [
            (b"content-type", b"application/x-amz-json-1.0"),
            (b"content-length", str(len(body)).encode()),
            (b"x-amz-crc32", str(crc32(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        if scope["method"] == "GET":
            return 200, b"{}"  # The response of a health check.
        headers = dict(scope["headers"])
        if not is_loopback(name_of(headers.get(b"host", b"localhost").decode("latin-1"))):
            return Refused("AccessDeniedException", "this port answers to loopback names alone").answer
        target = headers.get(_TARGET, b"").decode("latin-1")
        body = await _read(receive)
        try:
            return await self._carry_out(target.removeprefix(_VERSION), body)
        except Refused as refusal:
            return refusal.answer
        except (KeyError, TypeError, ValueError) as error:
            return Refused("SerializationException", f"the request cannot be read: {error!r}").answer
        except ProtocolError as error:  # The disk fails.
            return 500, orjson.dumps({"__type": "#InternalServerError", "message": str(error)})

    async def _carry_out(self, operation: str, body: bytes) -> Answer:
        arguments = orjson.loads(body)
        if operation in self._of_tables:
            return 200, orjson.dumps(self._of_tables[operation](arguments))
        names = set(_tables_of(arguments))
        if len(names) != 1:
            raise Refused("ValidationException", "the embedded engine takes a request for one table")
        table = self._table(names.pop())
        return await table.table.database.run(lambda: table.send(operation, body))

    def _table(self, name: str) -> DynamoDBProtocol:
        if name not in self._tables:
            raise Refused("ResourceNotFoundException", f"Requested resource not found: Table: {name}")
        return self._tables[name]

    def _create_table(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = asked["TableName"]
        if name in self._tables:
            raise Refused("ResourceInUseException", f"Table already exists: {name}")
        if self._create is None or [each["AttributeName"] for each in asked["KeySchema"]] != [PK, SK]:
            raise Refused("ValidationException", f"the embedded engine has tables by {PK} and {SK} alone")
        self._tables[name] = self._create(name)
        return {"TableDescription": self._description(name)}

    def _description(self, name: str) -> dict[str, Any]:
        table = self._table(name)
        definition = table_definition(name)
        return {
            "TableName": name,
            "TableStatus": "ACTIVE",
            "ItemCount": table.table.count(),
            "TableArn": f"arn:aws:dynamodb:local:000000000000:table/{name}",
            "KeySchema": definition["KeySchema"],
            "AttributeDefinitions": definition["AttributeDefinitions"],
        }


def _tables_of(arguments: dict[str, Any]) -> Iterator[str]:
    if "TableName" in arguments:
        yield arguments["TableName"]
    yield from arguments.get("RequestItems", ())
    for each in arguments.get("TransactItems", ()):
        for write in each.values():
            yield write["TableName"]


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES or not message.get("more_body", False):
            return bytes(body)

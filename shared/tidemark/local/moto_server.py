"""The moto process itself: `python -m tidemark.local.moto_server <listening descriptor>`.

moto's own server would do, but for five things: it takes a port and not a socket; it outlives its parent; it
runs requests on threads without locks, so that of two conditional writes that race both can succeed; a
transaction copies its whole table first, which takes seconds where a test run's streams are in one table; and
an object that is sent with a form's content type (curl's and urllib's default) is stored empty.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import DynamoType
from moto.dynamodb.models.table import Table
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from tidemark.local.process import end_with_parent

WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class OneAtATime:
    """Lets one request run at a time, but for those that wait for a message in a queue."""

    def __init__(self, application: WsgiApplication) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, request: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if request.get("HTTP_X_AMZ_TARGET") == "AmazonSQS.ReceiveMessage":
            return self._application(request, start_response)
        with self._lock:
            return list(self._application(request, start_response))


def bodies_are_no_forms(application: WsgiApplication) -> WsgiApplication:
    """Keep moto from reading the body of a PUT, which S3 alone has, as a form: nothing would be stored."""

    def without_form_type(request: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        is_form = request.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded")
        if is_form and request["REQUEST_METHOD"] == "PUT":
            request = request | {"CONTENT_TYPE": "application/octet-stream"}
        return application(request, start_response)

    return without_form_type


def undo_by_item() -> None:
    """In place of the copy of a table: a transaction that fails gives back the partitions that it names."""
    transact = DynamoDBBackend.transact_write_items

    def transact_write_items(self: DynamoDBBackend, transact_items: list[dict[str, Any]]) -> None:
        before = [
            kept
            for each in transact_items
            for request in each.values()
            if (kept := _partition_before(self.tables.get(request["TableName"]), request))
        ]
        try:
            transact(self, transact_items)
        except Exception:
            for table, hash_key, partition, records in reversed(before):
                table.items.pop(hash_key, None)
                if partition is not None:
                    table.items[hash_key] = partition
                if table.stream_shard is not None:
                    del table.stream_shard.items[records:]
            raise

    setattr(DynamoDBBackend, "transact_write_items", transact_write_items)  # noqa: B010 - mypy: it is a method
    setattr(Table, "__deepcopy__", lambda table, _memo: table)  # noqa: B010 - it is not declared as an attribute


def _partition_before(table: Table | None, request: dict[str, Any]) -> Any:
    """The table, the partition's key, its items, and how many stream records there are."""
    if table is None:
        return None
    key = request.get("Key") or request["Item"]
    hash_key, range_key = DynamoType(key[table.hash_key_attr]), DynamoType(key[table.range_key_attr])
    partition = table.items.get(hash_key)
    kept = None if partition is None else dict(partition)
    if partition is not None and range_key in partition:
        # An update changes an item in its place, so it gets a copy to change.
        partition[range_key] = copy.deepcopy(partition[range_key])
    return table, hash_key, kept, len(table.stream_shard.items) if table.stream_shard else 0


class KeepAlive(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: a line for each request would fill the log."""


def main(descriptor: int) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    undo_by_item()
    application = OneAtATime(bodies_are_no_forms(DomainDispatcherApplication(create_backend_app)))
    make_server(
        "127.0.0.1", 0, application, threaded=True, request_handler=KeepAlive, fd=descriptor
    ).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))

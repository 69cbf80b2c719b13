"""Runs one built function by itself: its own directory, the layer, and Python.

Started by `test_artifact.py` without site-packages and without the project. What is built for
Lambda's processor cannot run here, so the same versions built for this one stand in front of
the layer; nothing else does. Reads a JSON task, writes a JSON report.
"""

import json
import sys

task = json.load(sys.stdin)
sys.path[:0] = [task["function"], task["natives"], task["layer"]]

import asyncio  # noqa: E402 - the path comes first
from collections.abc import Iterator  # noqa: E402
from typing import Any  # noqa: E402

import botocore.client  # noqa: E402

from tidemark.aws.clock import StorageClock  # noqa: E402
from tidemark.aws.dynamodb import DynamoDB  # noqa: E402
from tidemark.aws.s3 import Objects  # noqa: E402

called: set[str] = set()
#: Each call, what it is carried out on, and the partition keys that it names.
asked: list[tuple[str, str, list[str]]] = []
TRANSACTED = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
}


def record() -> None:
    """What is asked of AWS, by any of the clients."""
    make, call = botocore.client.BaseClient._make_api_call, DynamoDB.call
    from tidemark.wake.notifier import SocketApi  # With the clock that is set by now.

    carry, post = Objects._call, SocketApi.send

    def making(self: Any, operation: str, arguments: Any) -> Any:
        name = f"{self.meta.service_model.service_name}:{operation}"
        called.add(name)
        asked.append((name, resource_of(arguments), []))
        return make(self, operation, arguments)

    def calling(self: Any, operation: str, arguments: dict[str, Any]) -> Any:
        called.update(f"dynamodb:{name}" for name in items(operation, arguments))
        asked.extend(table_requests(operation, arguments))
        return call(self, operation, arguments)

    def carrying(self: Any, operation: str, key: str, *more: Any) -> bytes:
        called.add(f"s3:{operation}")
        asked.append((f"s3:{operation}", f"object:{key}", []))
        return carry(self, operation, key, *more)

    def posting(self: Any, connection_id: str, frames: Any) -> None:
        called.add("execute-api:ManageConnections")
        asked.append(("execute-api:ManageConnections", f"connection:{connection_id}", []))
        post(self, connection_id, frames)

    botocore.client.BaseClient._make_api_call = making
    SocketApi.send = posting  # type: ignore[method-assign]
    Objects._call = carrying  # type: ignore[method-assign, assignment]
    DynamoDB.call = calling  # type: ignore[method-assign]


def items(operation: str, arguments: dict[str, Any]) -> Iterator[str]:
    """IAM knows the writes in a transaction by the names they have outside."""
    if operation == "TransactWriteItems":
        yield from (TRANSACTED[kind] for each in arguments["TransactItems"] for kind in each)
    else:
        yield operation


def resource_of(arguments: dict[str, Any]) -> str:
    """Of a call by botocore: the queue, parameter, object or bucket that it names."""
    if "QueueName" in arguments or "QueueUrl" in arguments:
        return f"queue:{arguments.get('QueueName') or arguments['QueueUrl'].rpartition('/')[2]}"
    if "Delete" in arguments:
        return f"object:{arguments['Delete']['Objects'][0]['Key']}"
    if "Bucket" in arguments:
        return f"object:{arguments['Key']}" if "Key" in arguments else "bucket:"
    return f"parameter:{arguments['Name']}" if "Name" in arguments else "*"


def table_requests(operation: str, arguments: dict[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    if operation == "TransactWriteItems":
        for each in arguments["TransactItems"]:
            for kind, request in each.items():
                yield f"dynamodb:{TRANSACTED[kind]}", "table:", partition_keys(request)
    elif operation == "BatchWriteItem":
        [requests] = arguments["RequestItems"].values()
        keys = [key for each in requests for request in each.values() for key in partition_keys(request)]
        yield "dynamodb:BatchWriteItem", "table:", keys
    elif operation == "BatchGetItem":
        [asked] = arguments["RequestItems"].values()
        yield "dynamodb:BatchGetItem", "table:", [key["pk"]["S"] for key in asked["Keys"]]
    else:
        yield f"dynamodb:{operation}", "table:", partition_keys(arguments)


def partition_keys(request: dict[str, Any]) -> list[str]:
    """IAM's `dynamodb:LeadingKeys`."""
    if "KeyConditionExpression" in request:
        return [request["ExpressionAttributeValues"][":pk"]["S"]]
    return [(request.get("Item") or request["Key"])["pk"]["S"]]


class Context:
    function_name = aws_request_id = "probe"
    memory_limit_in_mb = "512"
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:probe"

    def get_remaining_time_in_millis(self) -> int:
        return 60_000


async def ask(app: Any, step: dict[str, Any]) -> dict[str, Any]:
    """One request to an ASGI application, as the web adapter would make it."""
    sent: list[Any] = []
    path, _, query = step["target"].partition("?")
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(),
        "query_string": query.encode(), "headers": [], "scheme": "http", "http_version": "1.1",
        "root_path": "", "asgi": {"version": "3.0"},
    }  # fmt: skip
    requests = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if requests:
            return requests.pop()
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return {"statusCode": sent[0]["status"], "body": body.decode()}


async def serve(app: Any, steps: list[Any]) -> list[Any]:
    """From the start of the server to its end, which is when it cleans up."""
    stop = asyncio.Event()
    begun = asyncio.Event()
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Any:
        message = next(messages)
        if message["type"] == "lifespan.shutdown":
            await stop.wait()
        return message

    async def send(_: Any) -> None:
        begun.set()

    living = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send))
    await begun.wait()
    answers = [await ask(app, step) for step in steps]
    stop.set()
    await living
    return answers


def run() -> list[Any]:
    import app  # type: ignore[import-not-found]

    if not hasattr(app, "handler"):
        import uvicorn  # noqa: F401 - what run.sh starts it with

        return asyncio.run(serve(app.app, task["steps"]))
    asyncio.set_event_loop(asyncio.new_event_loop())
    return [app.handler(step, Context()) for step in task["steps"]]


now_ms = StorageClock.now_ms
StorageClock.now_ms = lambda clock: now_ms(clock) + task["hours_ahead"] * 3_600_000  # type: ignore[method-assign, assignment]
record()
answers = run()

origins = {name: module.__file__ for name, module in sys.modules.items() if getattr(module, "__file__", None)}
report = {"answers": answers, "called": sorted(called), "asked": asked, "origins": origins}
print("REPORT" + json.dumps(report))

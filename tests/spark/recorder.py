"""What is asked of AWS, whoever asks: a proxy before the engines, for Python's clients and the JVM's."""

from collections.abc import Iterator
from typing import Any, Final, Self
from urllib.parse import parse_qs

import orjson
import urllib3

from tests.spark.serving import ThreadedServer

_TRANSACTED: Final = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
}
#: Of a request to S3 for an object; with one of these in the query, of another kind.
_OBJECT: Final = dict.fromkeys(("GET", "HEAD"), "s3:GetObject") | dict.fromkeys(
    ("PUT", "POST"), "s3:PutObject"
)


class Recorder:
    """`seen` holds pairs of an IAM action and what it was for: the table, the catalog, or an object."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._pool = urllib3.PoolManager(maxsize=16, retries=False)
        self._server = ThreadedServer(self._serve)
        self.seen: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()
        self._pool.clear()

    @property
    def url(self) -> str:
        return self._server.url

    def actions(self, prefix: str) -> set[str]:
        """On everything whose name begins so."""
        return {action for action, place in self.seen if place.startswith(prefix)}

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        path, query = scope["raw_path"].decode(), scope["query_string"].decode()
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.seen.update(asked(scope["method"], path, query, headers, body))
        answer = self._forward(scope["method"], f"{path}?{query}" if query else path, headers, body)
        raw = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
        hop = {b"connection", b"transfer-encoding", b"keep-alive", b"date", b"server"}
        kept = [(name, value) for name, value in raw if name not in hop]
        await send({"type": "http.response.start", "status": answer.status, "headers": kept})
        await send({"type": "http.response.body", "body": answer.data})

    def _forward(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> urllib3.BaseHTTPResponse:
        own = {"transfer-encoding", "expect", "content-length", "connection"}
        kept = {name: value for name, value in headers.items() if name not in own}
        return self._pool.request(
            method, self._endpoint + target, headers=kept, body=body, decode_content=False, redirect=False
        )


def asked(
    method: str, path: str, query: str, headers: dict[str, str], body: bytes
) -> Iterator[tuple[str, str]]:
    service, _, operation = headers.get("x-amz-target", "").rpartition(".")
    if service == "AWSGlue":
        yield f"glue:{operation}", "catalog"
        return
    if operation:
        for name in _operations(operation, body):
            yield f"dynamodb:{name}", "table"
        return
    place = path.strip("/")
    if "/" not in place:
        yield "s3:ListBucket", place
    elif method == "DELETE":
        aborts = "uploadId" in parse_qs(query)
        yield "s3:AbortMultipartUpload" if aborts else "s3:DeleteObject", place
    elif method == "POST" and "delete" in parse_qs(query, keep_blank_values=True):
        yield "s3:DeleteObject", place
    else:
        yield _OBJECT[method], place
    if "x-amz-copy-source" in headers:
        yield "s3:GetObject", headers["x-amz-copy-source"].strip("/")


def _operations(operation: str, body: bytes) -> Iterator[str]:
    """IAM knows the writes in a transaction by the names they have outside."""
    if operation != "TransactWriteItems":
        yield operation
        return
    for each in orjson.loads(body)["TransactItems"]:
        yield from (_TRANSACTED[kind] for kind in each)

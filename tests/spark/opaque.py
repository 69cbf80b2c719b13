"""A Durable Streams server of another make: its offsets are words, its pages have no limit.

It serves one stream at every path, and lists it as `s` in every bucket.
"""

import json
from typing import Any
from urllib.parse import parse_qs

from tests.spark.serving import ThreadedServer


def token(index: int) -> str:
    """Sorts as the index does, and is no number."""
    return f"o{index:04}x"


class OpaqueServer(ThreadedServer):
    """With an `incarnation` its entity tags tell it, as the protocol's form of them does (§10.1)."""

    def __init__(self, *, is_json: bool) -> None:
        super().__init__(self._serve)
        self._is_json = is_json
        self.incarnation = ""
        self.has_length = True
        self._bodies: list[bytes] = []
        self._retained = 0

    @property
    def tail(self) -> str:
        return token(len(self._bodies))

    def append(self, body: bytes) -> None:
        self._bodies.append(body)

    def create_again(self) -> None:
        """Deleted and created: empty, and another one to those who look at the tags."""
        self._bodies.clear()
        self.incarnation = self.incarnation and self.incarnation + "+"

    def retain_from(self, index: int) -> None:
        self._retained = index

    async def _serve(self, scope: Any, _receive: Any, send: Any) -> None:
        status, headers, body = self._answer(scope)
        if self.has_length:
            headers["content-length"] = str(len(body))
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answer(self, scope: Any) -> tuple[int, dict[str, str], bytes]:
        query = parse_qs(scope["query_string"].decode())
        if scope["path"].endswith("/streams"):
            return 200, {}, json.dumps({"streams": [{"stream_id": "s"}], "has_more": False}).encode()
        return self._read(scope["method"], query)

    def _read(self, method: str, query: dict[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
        headers = {
            "content-type": "application/json" if self._is_json else "application/octet-stream",
            "stream-next-offset": self.tail,
            "stream-up-to-date": "true",
        }
        if self._retained:
            headers["stream-snapshot-offset"] = token(self._retained)
        if method == "HEAD":
            return 200, headers, b""
        start = 0 if query["offset"] == ["-1"] else int(query["offset"][0][1:5])
        if self.incarnation:
            headers["etag"] = f'"{self.incarnation}:{token(start)}:{self.tail}"'
        if start < self._retained:
            return 410, {}, b"gone"
        bodies = self._bodies[start:]
        return 200, headers, b"[" + b", ".join(bodies) + b"]" if self._is_json else b"".join(bodies)

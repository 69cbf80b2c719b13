"""A server as the commands ask it: its streams by the package's client, and Tidemark's own listings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, Unpack
from urllib.parse import quote, urlsplit

from tidemark.client import MalformedReply, Retry, Stream
from tidemark.client.blocking import BlockingDriver
from tidemark.client.core import CreateOptions
from tidemark.client.exchange import Reply, Request, Steps, exchange

T = TypeVar("T")

#: Six to eight seconds: a server that starts again is waited for, and who mistyped an address is told soon.
PATIENCE: Final = Retry(max_retries=6)


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """`token` goes into the Authorization header; empty sends none. Everything raises StreamError."""

    url: str
    token: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def serving(self, stream: str) -> RemoteServer:
        """The server of a stream: this one, unless the stream's URL names another."""
        parts = urlsplit(stream)
        if not parts.netloc or stream.startswith(f"{self.url.rstrip('/')}/"):
            return self
        return replace(self, url=f"{parts.scheme}://{parts.netloc}")

    def stream_url(self, stream: str) -> str:
        return self.url.rstrip("/") + stream_path(stream)

    def stream(self, stream: str) -> Stream:
        return Stream(self.stream_url(stream), headers=self.headers, retry=PATIENCE)

    def create(self, stream: str, content_type: str | None, **creation: Unpack[CreateOptions]) -> Stream:
        url = self.stream_url(stream)
        return Stream.create(url, content_type=content_type, headers=self.headers, retry=PATIENCE, **creation)

    def run(self, steps: Steps[T]) -> T:
        return BlockingDriver(None, self.headers, {}).run(steps)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Reply:
        request = Request(method, self.url.rstrip("/") + path, headers or {}, params or {}, body)
        return self.run(exchange(request, PATIENCE))

    def get(self, path: str, **query: str) -> Any:
        """The JSON of an answer."""
        body = self.ask("GET", path, params=query).body
        try:
            return json.loads(body)
        except ValueError as wrong:
            raise MalformedReply(f"GET {path}: the answer is not JSON; is this a Tidemark?") from wrong

    def pages(self, path: str, name: str, **query: str) -> Iterator[dict[str, Any]]:
        """Everything that a listing lists."""
        after: str | None = ""
        while after is not None:
            page = self.get(path, **query, **({"after": after} if after else {}))
            yield from page[name]
            after = page["next_cursor"] if page["has_more"] else None


def stream_path(stream: str) -> str:
    """The path of a stream, from its URL, its path, or the name of a plain stream."""
    if "://" in stream:
        return urlsplit(stream).path
    return stream if stream.startswith("/") else f"/v1/stream/{quote(stream)}"

"""`Server`: the streams and subscriptions of a Tidemark server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, Unpack
from urllib.parse import quote, urlsplit

import httpx

from tidemark.client import wire
from tidemark.client.blocking import BlockingDriver, Stream
from tidemark.client.core import STREAM_ROOT, SUBSCRIPTIONS, CreateOptions, subscription_path
from tidemark.client.errors import MalformedReply
from tidemark.client.exchange import Reply, Request, Steps, exchange
from tidemark.protocol.offset import render_offset

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """A stream in a listing. `Server.stream` takes the name, and `follow` the offset, which is the tail.
    `size_bytes` counts the messages that can be read."""

    name: str
    content_type: str
    closed: bool
    offset: str
    size_bytes: int
    etag: str
    created_at: datetime
    last_write_at: datetime
    expires_at: datetime | None


class Server(wire.Address[httpx.Client, wire.Value, Any]):
    """A Tidemark server. The constructor sends no request.

    `token` is a bearer token, or a function that is called for each request. `options` are those of `Stream`;
    the streams of this server have them too. A stream has a name (chat/42), a path (/notes/report, in the
    bucket `notes`) or a URL."""

    def __init__(
        self,
        url: str,
        *,
        token: wire.Value | None = None,
        **options: Unpack[wire.StreamOptions[httpx.Client, wire.Value]],
    ) -> None:
        options["headers"] = {**(options.get("headers") or {}), **wire.bearer(token)}
        super().__init__(url.rstrip("/"), **options)

    def stream(self, name: str) -> Stream:
        return Stream(self.stream_url(name), **self.options)

    def create(self, name: str, content_type: str | None, **creation: Unpack[CreateOptions]) -> Stream:
        """Create the stream, or use the existing one: see `Stream.create`."""
        options = self.options | {"content_type": content_type}
        return Stream.create(self.stream_url(name), **options, **creation)

    def streams(self, prefix: str = "") -> Iterator[StreamEntry]:
        """List the streams whose names begin with `prefix`: chat/, or /notes/ for the bucket `notes`. A page
        is requested when the iteration needs it."""
        listing, begun, place = listing_of(prefix)
        for each in self.pages(listing, "streams", prefix=begun):
            expires, name = each["expires_at_ms"], each["stream_id"]
            yield StreamEntry(
                place + quote(name) if place else name,
                each["content_type"],
                each["status"] == "Closed",
                render_offset(each["tail_offset"]),
                each["tail_offset"] - int(each["retained_offset"]),
                each["etag"],
                _time(each["created_at_ms"]),
                _time(each["last_write_at_ms"]),
                None if expires is None else _time(expires),
            )

    def subscriptions(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """List the subscriptions whose ids begin with `prefix`, with the members of the HTTP API."""
        return self.pages(SUBSCRIPTIONS, "subscriptions", prefix=prefix)

    def subscription(self, subscription_id: str) -> Any:
        """Return a subscription, and how far each of its streams is acked. Raises NotFound."""
        return self.get(subscription_path(subscription_id))

    def create_subscription(self, subscription_id: str, **configuration: Any) -> Any:
        """Create a subscription, or use the existing one if its configuration is the same. `configuration` is
        the body of the HTTP API: `type`, `pattern`, `streams`, `wake_stream`, `webhook`, …"""
        body, of_json = json.dumps(configuration).encode(), {"Content-Type": "application/json"}
        return json.loads(self.ask("PUT", subscription_path(subscription_id), body, of_json).body)

    def delete_subscription(self, subscription_id: str) -> None:
        """Delete a subscription. No error if it does not exist."""
        self.ask("DELETE", subscription_path(subscription_id))

    def stream_url(self, name: str) -> str:
        return name.partition("?")[0] if name.startswith(f"{self.url}/") else self.url + stream_path(name)

    def pages(self, path: str, members: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the members of all pages of a listing."""
        after: str | None = ""
        while after is not None:
            page = self.get(path, **query, **({"after": after} if after else {}))
            yield from page[members]
            after = page["next_cursor"] if page["has_more"] else None

    def get(self, path: str, **query: str) -> Any:
        """Return the JSON of an answer."""
        body = self.ask("GET", path, params=query).body
        try:
            return json.loads(body)
        except ValueError as wrong:
            raise MalformedReply(f"GET {path}: the answer is not JSON; is this a Tidemark?") from wrong

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] = {},
        params: Mapping[str, str] = {},
    ) -> Reply:
        return self.run(
            exchange(Request(method, self.url + path, headers, params, body), self.options["retry"])
        )

    def run(self, steps: Steps[_T]) -> _T:
        return BlockingDriver(self._client, self._headers, self._params, self._timeout).run(steps)


def stream_path(name: str) -> str:
    """Return the path of a stream, from its URL, its path, or the name of a plain stream."""
    if {".", ".."} & {*name.split("/")}:
        # URL normalization would remove the dots, and the path would be another stream's.
        raise ValueError(f"{name!r} must not have '.' or '..' between slashes")
    if "://" in name:
        return urlsplit(name).path
    return name if name.startswith("/") else STREAM_ROOT + quote(name)


def listing_of(begun: str) -> tuple[str, str, str]:
    """Return, for the beginning of a name or path, the path of the listing, the prefix of the ids, and the
    part of a stream's path before its id."""
    bucket, slash, prefix = begun.removeprefix("/").partition("/")
    if begun.startswith("/") and slash:
        return f"/{bucket}/streams", prefix, f"/{bucket}/"
    return "/v1/streams", begun, ""


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)

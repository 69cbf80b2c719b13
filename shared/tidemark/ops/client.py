"""A server as the commands ask it: over HTTP, whatever is behind the address."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import urllib3
from urllib3.exceptions import HTTPError

#: A long-poll is answered within 30 seconds, and a new environment takes a few more to start.
_TIMEOUT_SECONDS: Final = 60.0
#: An answer that may be another one in a moment.
_PASSING: Final = frozenset({429, 500, 502, 503, 504})
_TRIES: Final = 6


class RequestFailed(Exception):
    """The message says what the server refused, or that it does not answer."""


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """`token` goes into the Authorization header; empty sends none."""

    url: str
    token: str = ""
    _pool: urllib3.PoolManager = field(
        default_factory=lambda: urllib3.PoolManager(timeout=_TIMEOUT_SECONDS, retries=False)
    )

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """The response, if below 400. Requests that may succeed later are retried for about half a minute; an
        append has a producer's number, so that it lands once. Raises RequestFailed."""
        target = self.url.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        sent = dict(headers or {}) | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        said = ""
        for tries in range(_TRIES):
            if tries:
                time.sleep(2**tries / 2)
            try:
                response = self._pool.request(method, target, body=body, headers=sent)
            except HTTPError as failure:
                said = f"{self.url} does not answer: {failure}"
                continue
            if response.status < 400:
                return response
            said = f"{response.status}: {_reason(response.data)}"
            if response.status not in _PASSING:
                break
        raise RequestFailed(said)

    def get(self, path: str, **query: str) -> Any:
        """The JSON of a response. Raises RequestFailed."""
        return self.request("GET", path, query).json()

    def pages(self, path: str, name: str, **query: str) -> Iterator[dict[str, Any]]:
        """Everything that a listing lists."""
        after: str | None = ""
        while after is not None:
            page = self.get(path, **query, **({"after": after} if after else {}))
            yield from page[name]
            after = page["next_cursor"] if page["has_more"] else None


def _reason(data: bytes) -> str:
    try:
        return str(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError):
        return data[:200].decode(errors="replace")


def stream_path(stream: str) -> str:
    """The path of a stream, from its URL, its path, or the name of a plain stream."""
    if "://" in stream:
        return urlsplit(stream).path
    return stream if stream.startswith("/") else f"/v1/stream/{quote(stream)}"

"""A client of HTTP/1.1 that takes nothing for an answer but a whole one."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

import httpx

TIMEOUT_SECONDS: Final = 20.0
JSON: Final = {"Content-Type": "application/json"}


class NoAnswer(Exception):
    """Nobody knows whether the request was carried out."""


class NotSent(NoAnswer):
    """The connection was not even made: it was not."""


class TimedOut(NoAnswer):
    """It may still be carried out: whoever was asked is still there."""


@dataclass(slots=True)
class Answer:
    """Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def next_offset(self) -> int:
        """-1 where none is named."""
        return int(self.headers.get("stream-next-offset", "-1"))

    @property
    def up_to_date(self) -> bool:
        return "stream-up-to-date" in self.headers

    @property
    def closed(self) -> bool:
        return "stream-closed" in self.headers


@contextmanager
def _as_no_answer() -> Iterator[None]:
    try:
        yield
    except httpx.ConnectError as failure:
        raise NotSent from failure
    except (TimeoutError, httpx.TimeoutException) as late:
        raise TimedOut from late
    except httpx.TransportError as failure:
        raise NoAnswer from failure


class Client:
    """One request at a time over a connection that is kept as long as it lasts."""

    def __init__(self, port: int) -> None:
        self.port = port
        plain, url = {"Accept-Encoding": "identity"}, f"http://127.0.0.1:{port}"
        self._http = httpx.AsyncClient(
            base_url=url, headers=plain, timeout=None, verify=False, trust_env=False
        )
        self.aclose = self._http.aclose

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> Answer:
        """Raises NoAnswer."""
        with _as_no_answer():
            async with asyncio.timeout(timeout_seconds):
                answer = await self._http.request(method, path, content=body, headers=headers)
        return Answer(answer.status_code, dict(answer.headers), answer.content)

    @asynccontextmanager
    async def events(
        self, path: str, event_id: str, idle_seconds: float
    ) -> AsyncIterator[tuple[int, AsyncIterator[dict[str, str]]]]:
        """As an EventSource connects again: the status of the answer, and the fields of each event. Raises
        NoAnswer, also where nothing comes for `idle_seconds`."""
        asked = {"Last-Event-ID": event_id} if event_id else {}
        limits = httpx.Timeout(None, read=idle_seconds)
        with _as_no_answer():
            async with self._http.stream(
                "GET", path, headers=asked, timeout=limits, follow_redirects=True
            ) as answer:
                yield answer.status_code, _events_in(answer)


async def _events_in(answer: httpx.Response) -> AsyncIterator[dict[str, str]]:
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        name, _, value = line.partition(":")
        if name:
            fields[name] = value.strip()
        elif not line:
            if fields:
                yield fields
            fields = {}

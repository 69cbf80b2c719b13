"""A client of HTTP/1.1 that takes nothing for an answer but a whole one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin

from tests.chaos.exchange import BUFFER, read_reply

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


class Client:
    """One request at a time over a connection that is kept as long as it lasts."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> Answer:
        """Raises NoAnswer."""
        try:
            async with asyncio.timeout(timeout_seconds):
                head, *pieces = [piece async for piece in self._exchange(method, path, body, headers or {})]
        except TimeoutError as late:
            self.close()
            raise TimedOut from late
        except BaseException:
            self.close()
            raise
        answer = Answer(status_of(head), _headers(head), b"".join(pieces))
        if answer.headers.get("connection", "").lower() == "close":
            self.close()
        return answer

    async def events(self, path: str, event_id: str, idle_seconds: float) -> AsyncGenerator[bytes, None]:
        """As an EventSource connects again: the head of the answer, and its body as it comes. Raises
        NoAnswer, also where nothing comes for so long; ends where the answer does."""
        if event_id:
            answer = await self.request("GET", path, headers={"Last-Event-ID": event_id})
            if answer.status != 307:
                yield f"HTTP/1.1 {answer.status} ".encode()
                return
            path = urljoin(path, answer.headers["location"])
        pieces = self._exchange("GET", path, b"", {})
        try:
            while True:
                async with asyncio.timeout(idle_seconds):
                    piece = await anext(pieces, None)
                if piece is None:
                    return
                yield piece
        except TimeoutError as late:
            raise TimedOut from late
        finally:
            await pieces.aclose()
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncGenerator[bytes, None]:
        reader, writer = await self._connect()
        named = {"Host": f"127.0.0.1:{self.port}", "Content-Length": len(body), **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
        try:
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
            async for piece in read_reply(reader, method, is_decoded=True):
                yield piece
        except (EOFError, OSError) as failure:
            raise NoAnswer from failure

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._connection is not None:
            reader, writer = self._connection
            if not (reader.at_eof() or writer.is_closing()):
                return self._connection
            self.close()
        try:
            self._connection = await asyncio.open_connection("127.0.0.1", self.port, limit=BUFFER)
        except OSError as failure:
            raise NotSent from failure
        return self._connection


def status_of(head: bytes) -> int:
    return int(head[9:12])


def _headers(head: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:-2])
    return {name.lower(): value.strip() for name, _, value in lines}

"""The answers to the messages of API Gateway's sockets (`docs/reference/socket.md`).

API Gateway holds the connections, and nothing is kept of them but their watches: waiters in the table, which
the notifier tells. It also finds out which connections are gone; the others' watches lapse.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tidemark.http.requests import parse_stream_parameter
from tidemark.http.socket import WatchAnswers
from tidemark.log.read import load_stream
from tidemark.log.records import Waiter
from tidemark.log.waiters import end_watch, put_waiter
from tidemark.observability.invocation import Handler, thread_loop
from tidemark.protocol.errors import Malformed, ProtocolError
from tidemark.protocol.socket import MAX_LEASE_SECONDS, Message, parse_frame, refusal_message, render_answer
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.stores import Stores, connect
from tidemark.service.watch import Watched, begin_watch
from tidemark.settings import Settings

#: A message may name a hundred streams.
_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class _Client:
    """Who sent a message, and when, by API Gateway's clock."""

    connection_id: str
    asked_ms: int

    def waiter(self, incarnation: str, name: str, until_ms: int = 0) -> Waiter:
        return Waiter(incarnation, self.connection_id, until_ms, name, self.asked_ms)


class SocketEvents:
    """For any number of connections."""

    def __init__(self, stores: Stores, settings: Settings) -> None:
        self._stores = stores
        self._answers = WatchAnswers(settings.authorization, stores.clock_ms)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tidemark-watch")

    async def answer(self, event: Mapping[str, Any]) -> list[Message]:
        """What the client is told at once about its message."""
        context = event["requestContext"]
        client = _Client(context["connectionId"], context["requestTimeEpoch"])
        try:
            frame = parse_frame(_text(event))
            self._stores.check_format()
        except ProtocolError as error:
            return [refusal_message(error)]
        await asyncio.gather(*(self._run(partial(self._end, client, name)) for name in frame.unwatch))
        return await self._answers.watch(frame, partial(self._begin, client))

    async def _run(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def _begin(self, client: _Client, name: str, key: StreamKey, token_until_ms: int | None) -> Watched:
        def register(incarnation: str) -> float:
            until_ms = self._stores.clock_ms() + MAX_LEASE_SECONDS * 1000
            until_ms = until_ms if token_until_ms is None else min(until_ms, token_until_ms)
            put_waiter(self._stores.table, client.waiter(incarnation, name, until_ms))
            return math.inf  # The notifier tells of every append.

        watched: Watched = await self._run(partial(begin_watch, self._stores, key, register))
        return watched

    def _end(self, client: _Client, name: str) -> None:
        """A watch that is not found, or cannot be removed now, lapses."""
        with suppress(ProtocolError):
            record = load_stream(self._stores.table, parse_stream_parameter(name))
            if record is not None:
                end_watch(self._stores.table, client.waiter(record.incarnation, name))


def _text(event: Mapping[str, Any]) -> str:
    """Raises Malformed."""
    body = event.get("body")
    if event.get("isBase64Encoded") or not isinstance(body, str):
        raise Malformed("Messages are JSON in text frames, not bytes")
    return body


def create_socket_handler(settings: Settings) -> Handler:
    """Raises InvalidSetting for a function that would tell everybody without a token."""
    settings.authorization.check_not_open()
    events = SocketEvents(connect(settings, recent_bytes=0), settings)
    thread_loop()

    def handle(event: dict[str, Any], _context: Any) -> dict[str, Any]:
        messages = asyncio.get_event_loop().run_until_complete(events.answer(event))
        return {"statusCode": 200, "body": render_answer(messages)}

    return handle

"""The answers to the messages of API Gateway's sockets (`docs/reference/socket.md`).

API Gateway holds the connections, and nothing is kept of them but their watches: waiters in the table, which
the notifier tells. It also finds out which connections are gone; the others' watches lapse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from tidemark.http.socket import Begun, WatchAnswers, find_keys
from tidemark.log.records import StreamRecord, Waiter
from tidemark.log.waiters import end_watches, put_watches
from tidemark.observability.invocation import Handler, thread_loop
from tidemark.protocol import socket
from tidemark.protocol.errors import Malformed, ProtocolError
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.stores import Stores, connect
from tidemark.service.watch import begin_watches
from tidemark.settings import Settings


class SocketEvents:
    """Answers the messages of any number of connections."""

    def __init__(self, stores: Stores, settings: Settings) -> None:
        self._stores = stores
        self._answers = WatchAnswers(settings.authorization, stores.clock_ms)

    async def answer(self, event: Mapping[str, Any]) -> list[socket.Message]:
        """The messages that answer the client's message."""
        context = event["requestContext"]
        connection_id, asked_ms = context["connectionId"], context["requestTimeEpoch"]
        try:
            frame = socket.parse_frame(_text(event))
            self._stores.check_format()
            answers = await self._answers.watch(frame, partial(self._begin, connection_id, asked_ms, frame))
        except ProtocolError as error:
            return [socket.refusal_message(error)]
        # A repeated watch that is refused is over too.
        refused = [answer["stream"] for answer in answers if "status" in answer]
        if ended := find_keys((*frame.unwatch, *refused)):
            self._end(connection_id, ended, asked_ms)
        return answers

    async def _begin(
        self,
        connection_id: str,
        asked_ms: int,
        frame: socket.Frame,
        names: Mapping[StreamKey, str],
        token_until_ms: int | None,
    ) -> Begun:
        stores = self._stores

        def register(records: Sequence[StreamRecord]) -> None:
            now_ms = stores.clock_ms()
            until_ms = now_ms + socket.MAX_LEASE_SECONDS * 1000
            until_ms = until_ms if token_until_ms is None else min(until_ms, token_until_ms)
            waiter = Waiter("", connection_id, until_ms, asked_ms=asked_ms)
            watches = {
                each.key: replace(
                    waiter,
                    incarnation=each.incarnation,
                    name=names[each.key],
                    content_type=each.content_type if frame.data else None,
                )
                for each in records
            }
            put_watches(stores.table, connection_id, watches, now_ms, stores.concurrency.each)

        return begin_watches(stores, list(names), register)  # An environment has one message at a time.

    def _end(self, connection_id: str, keys: Sequence[StreamKey], asked_ms: int) -> None:
        """A watch that cannot be removed now lapses."""
        with suppress(ProtocolError):
            end_watches(self._stores.table, connection_id, keys, asked_ms, self._stores.concurrency.each)


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
        return {"statusCode": 200, "body": socket.render_answer(messages)}

    return handle

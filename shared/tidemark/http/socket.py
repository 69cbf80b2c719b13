"""Answers `watch` messages on a socket (`docs/reference/socket.md`): checks the right and returns the tail.

The server's own sockets are in `socket_session.py`. On AWS, API Gateway holds the connections
(`SocketEvents`), and only their watches are stored, as waiters in the table. The notifier sends news to the
waiters' connections, and detects closed ones; other watches lapse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from tidemark.http.error_handlers import INTERNAL, message_of, note_fault
from tidemark.http.requests import parse_stream_parameter
from tidemark.log.records import StreamRecord, Waiter
from tidemark.log.waiters import end_watches, put_watches
from tidemark.observability.invocation import Handler, thread_loop
from tidemark.protocol import authorization, socket
from tidemark.protocol.errors import Malformed, ProtocolError, StreamNotFound, Unauthorized
from tidemark.protocol.socket import Frame, Message, error_message, tail_message
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.stores import Stores, connect
from tidemark.service.watch import Watched, begin_watches
from tidemark.settings import AuthorizationSettings, Settings

Begun = Mapping[StreamKey, Watched | BaseException]
Begin = Callable[[Mapping[StreamKey, str], int | None], Awaitable[Begun]]
"""Registers watches under these names until the token expires, then reads the tails. Raises Malformed for too
many watches."""

_READ = frozenset({authorization.Right.READ})


class WatchAnswers:
    """Checks and answers watches. A watch needs the right to read the stream; without it, the answer does not
    reveal whether the stream exists. Pages of other origins may connect, because no cookie grants them a
    right: they need a token of their own."""

    def __init__(self, settings: AuthorizationSettings, stores: Stores) -> None:
        self._clock_ms = stores.clock_ms
        self._without_token = authorization.EVERYTHING
        #: Returns a token's grants; None if the server checks no tokens.
        self._granted: Callable[[str], Awaitable[authorization.Access]] | None = None
        if settings.is_on:  # Imported here because the libraries add a tenth of a second to a cold start.
            from tidemark.http.security.authorization import make_check

            self._without_token = authorization.Access(
                authorization.grants_of_public(settings.public_read_buckets)
            )
            self._granted = make_check(settings, stores.table, asyncio.to_thread)

    async def watch(self, frame: Frame, begin: Begin) -> list[Message]:
        """Return an answer for each stream in the frame. The token is checked once. A stream with several
        names is watched under the last one. Raises Malformed for too many watches."""
        has_token = frame.token is not None
        keys: dict[str, StreamKey] = {}
        refused: dict[str, ProtocolError] = {}
        try:
            access = self._without_token
            if self._granted is not None and frame.token is not None:
                access = await self._granted(frame.token)
            for name in frame.watch:
                try:
                    key = parse_stream_parameter(name)
                    _require_read(access, key, has_token=has_token)
                except ProtocolError as refusal:
                    refused[name] = refusal
                else:
                    keys[name] = key
            names = {key: name for name, key in keys.items()}
            begun = await begin(names, access.until_ms) if names else {}
        except Malformed:
            raise
        except Exception as failure:  # noqa: BLE001 - each stream gets an answer after any error
            return [failure_message(name, failure, has_token=has_token) for name in frame.watch]

        def answer(name: str) -> Message:
            watched = refused.get(name) or begun[keys[name]]
            if isinstance(watched, BaseException):
                return failure_message(name, watched, has_token=has_token)
            return tail_message(name, watched.tail, watched.lease_seconds(self._clock_ms(), access.until_ms))

        return list(map(answer, frame.watch))


def failure_message(name: str, failure: BaseException, *, has_token: bool = False) -> Message:
    """The error message to the client in place of the tail. Counted like a response with this status."""
    status, message = 500, INTERNAL
    if isinstance(failure, ProtocolError):
        status, message = failure.status, message_of(failure, has_token=has_token)
    note_fault("a watch", status, failure)
    return error_message(name, status, message)


def find_keys(names: Iterable[str]) -> list[StreamKey]:
    """The keys of the streams with these names, without invalid names."""
    keys: dict[StreamKey, None] = {}
    for name in names:
        with suppress(ProtocolError):
            keys[parse_stream_parameter(name)] = None
    return list(keys)


def _require_read(access: authorization.Access, key: StreamKey, *, has_token: bool) -> None:
    """Raises Unauthorized without a token, and StreamNotFound with one."""
    try:
        access.check(authorization.RequiredScope(authorization.Target(key.bucket, key.stream_id), _READ))
    except StreamNotFound:
        if has_token:
            raise
        raise Unauthorized(
            "A bearer token is needed: send it with watch, as token", token_given=False
        ) from None


class SocketEvents:
    """Answers the messages of all connections."""

    def __init__(self, stores: Stores, settings: Settings) -> None:
        self._stores = stores
        self._answers = WatchAnswers(settings.authorization, stores)

    async def answer(self, event: Mapping[str, Any]) -> list[socket.Message]:
        """Return the messages that answer a client's message."""
        context = event["requestContext"]
        connection_id, asked_ms = context["connectionId"], context["requestTimeEpoch"]
        try:
            frame = socket.parse_frame(_text(event))
            self._stores.check_format()
            answers = await self._answers.watch(frame, partial(self._begin, connection_id, asked_ms, frame))
        except ProtocolError as error:
            return [socket.refusal_message(error)]
        # If a repeated watch is refused, the earlier watch ends too.
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
        """Remove watches. After an error the watch lapses by itself."""
        with suppress(ProtocolError):
            end_watches(self._stores.table, connection_id, keys, asked_ms, self._stores.concurrency.each)


def _text(event: Mapping[str, Any]) -> str:
    """Raises Malformed."""
    body = event.get("body")
    if event.get("isBase64Encoded") or not isinstance(body, str):
        raise Malformed("Messages are JSON in text frames, not bytes")
    return body


def create_socket_handler(settings: Settings) -> Handler:
    """Make the function's handler. Raises InvalidSetting if everybody could watch without a token."""
    settings.authorization.check_not_open()
    events = SocketEvents(connect(settings, recent_bytes=0), settings)
    thread_loop()

    def handle(event: dict[str, Any], _context: Any) -> dict[str, Any]:
        messages = asyncio.get_event_loop().run_until_complete(events.answer(event))
        return {"statusCode": 200, "body": socket.render_answer(messages)}

    return handle

"""The answers to `watch` on a socket (`docs/reference/socket.md`): who may watch, and where the tail is.

The server's own sockets are in `socket_session.py`. On AWS they are API Gateway's: `socket_events.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

from tidemark.http.error_handlers import INTERNAL, note_fault, told_message
from tidemark.http.requests import parse_stream_parameter
from tidemark.protocol import authorization
from tidemark.protocol.errors import Malformed, ProtocolError, StreamNotFound, Unauthorized
from tidemark.protocol.socket import Frame, Message, error_message, tail_message
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.watch import Watched
from tidemark.settings import AuthorizationSettings

Begun = Mapping[StreamKey, Watched | BaseException]
Begin = Callable[[Mapping[StreamKey, str], int | None], Awaitable[Begun]]
"""Registers watches under these names, which end with the token, then reads the tails. Raises Malformed for
too many."""

_READ = frozenset({authorization.Right.READ})


class WatchAnswers:
    """A watch takes the right to read the stream; nobody else learns whether it exists. There are no cookies,
    so a page of another origin can do no more than its own token allows."""

    def __init__(self, settings: AuthorizationSettings, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._without_token = authorization.EVERYTHING
        #: authorization.Access by token; None where no tokens are checked.
        self._granted: Callable[[str], Awaitable[authorization.Access]] | None = None
        if settings.is_on:  # Imported here because the libraries add a tenth of a second to a cold start.
            from tidemark.http.security.authorization import make_check

            self._without_token = authorization.Access(
                authorization.grants_of_public(settings.public_read_buckets)
            )
            self._granted = make_check(settings, asyncio.to_thread)

    async def watch(self, frame: Frame, begin: Begin) -> list[Message]:
        """The answers for the streams that it names. The token is checked once for all of them. A stream is
        watched once, under the last of its names. Raises Malformed for too many."""
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
        except Exception as failure:  # noqa: BLE001 - whatever it is, each stream is answered
            return [failure_message(name, failure, has_token=has_token) for name in frame.watch]

        def answer(name: str) -> Message:
            watched = refused.get(name) or begun[keys[name]]
            if isinstance(watched, BaseException):
                return failure_message(name, watched, has_token=has_token)
            return tail_message(name, watched.tail, watched.lease_seconds(self._clock_ms(), access.until_ms))

        return list(map(answer, frame.watch))


def failure_message(name: str, failure: BaseException, *, has_token: bool = False) -> Message:
    """The message to the client in place of the tail. It is counted as a response of its status would be."""
    status, told = 500, INTERNAL
    if isinstance(failure, ProtocolError):
        status, told = failure.status, told_message(failure, has_token=has_token)
    note_fault("a watch", status, failure)
    return error_message(name, status, told)


def find_keys(names: Iterable[str]) -> list[StreamKey]:
    """The streams of these names; one that is no stream's name has none."""
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

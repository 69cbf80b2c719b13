"""The answers to `watch` on a socket (`docs/reference/socket.md`): who may watch, and where the tail is.

The server's own sockets are in `socket_session.py`. On AWS they are API Gateway's: `socket_events.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidemark.http.error_handlers import INTERNAL, told_message
from tidemark.http.requests import parse_stream_parameter
from tidemark.protocol.authorization import (
    EVERYTHING,
    Access,
    RequiredScope,
    Right,
    Target,
    grants_of_public,
)
from tidemark.protocol.errors import ProtocolError, StreamNotFound, Unauthorized
from tidemark.protocol.socket import Message, error_message, tail_message
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.watch import Watched
from tidemark.settings import AuthorizationSettings

Begin = Callable[[StreamKey, int | None], Awaitable[Watched]]
"""Registers the watch, which ends with the token, then reads the tail. Raises ProtocolError."""

_log = logging.getLogger("tidemark")
_READ = frozenset({Right.READ})


class WatchAnswers:
    """A watch takes the right to read the stream; nobody else learns whether it exists. There are no cookies,
    so a page of another origin can do no more than its own token allows."""

    def __init__(self, settings: AuthorizationSettings, clock_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._clock_ms = clock_ms
        self._public = Access(grants_of_public(settings.public_read_buckets))
        self._access = self._load_access()

    def _load_access(self) -> Callable[[str | None], Awaitable[Access]]:
        if not self._settings.is_on:
            return self._everything
        from tidemark.http.security.authorization import access_of, make_check

        check, public = make_check(self._settings, asyncio.to_thread), self._public

        async def access(token: str | None) -> Access:
            return public if token is None else await access_of(token, check, public)

        return access

    async def _everything(self, _token: str | None) -> Access:
        return EVERYTHING

    async def watch(self, name: str, token: str | None, begin: Begin) -> Message:
        """The answer for one stream. `name` is its path in a URL."""
        try:
            access = await self._access(token)
            key = parse_stream_parameter(name)
            _require_read(access, key, has_token=token is not None)
            watched = await begin(key, access.until_ms)
        except ProtocolError as error:
            return error_message(name, error.status, told_message(error, has_token=token is not None))
        except Exception:  # noqa: BLE001 - whatever it is, the other streams are answered
            _log.exception("unexpected error in a watch")
            return error_message(name, 500, INTERNAL)
        return tail_message(name, watched.tail, watched.lease_seconds(self._clock_ms(), access.until_ms))


def _require_read(access: Access, key: StreamKey, *, has_token: bool) -> None:
    """Raises Unauthorized without a token, and StreamNotFound with one."""
    try:
        access.check(RequiredScope(Target(key.bucket, key.stream_id), _READ))
    except StreamNotFound:
        if has_token:
            raise
        raise Unauthorized(
            "A bearer token is needed: send it with watch, as token", token_given=False
        ) from None

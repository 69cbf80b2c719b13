"""`/v1/socket` of a server or container: its open sockets (`docs/reference/socket.md`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from tidemark.http.app import HttpApplication
from tidemark.http.backend import Backend
from tidemark.http.error_handlers import response
from tidemark.http.limits import TokenBucket
from tidemark.http.requests import handshake_request
from tidemark.http.socket import Begun, WatchAnswers, failure_message, find_keys
from tidemark.observability.metrics import PROCESS
from tidemark.protocol import socket
from tidemark.protocol.errors import Malformed
from tidemark.protocol.socket import Frame, parse_frame, refusal_message, render_messages
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.watch import Watched
from tidemark.wake.follow import Watch

#: Messages read from a client in a second; also the burst size of the token bucket. Further messages wait.
MESSAGES_PER_SECOND: Final = 50


class Sockets:
    """ASGI middleware around the application. A handshake is passed on as a GET of the same path, and is
    refused if the GET is refused."""

    def __init__(self, app: HttpApplication, backend: Backend) -> None:
        self._app = app
        self._backend = backend
        self._answers = WatchAnswers(backend.settings.authorization, backend.stores)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        await receive()  # websocket.connect
        answer = response(404, f"There is no socket here; it is at {socket.PATH}")
        if scope["path"] == socket.PATH:
            answer = await self._app.respond(Request(handshake_request(scope)))
        if answer.status_code != 200:
            await answer(scope, receive, send)
            return
        await send({"type": "websocket.accept"})
        with PROCESS.waiting("socket"):
            await SocketSession(self._backend, self._answers, receive, send).run()


class SocketSession:
    """One open socket. Uses one task, and a second one while it sends news."""

    def __init__(self, backend: Backend, answers: WatchAnswers, receive: Receive, send: Send) -> None:
        self._backend = backend
        self._answers = answers
        self._receive = receive
        self._send = send
        self._watches: dict[StreamKey, Watch] = {}
        #: Watches whose tail may have moved, in the order of their wake-ups.
        self._woken: dict[Watch, None] = {}
        self._sending: asyncio.Task[None] | None = None
        self._pace = TokenBucket(MESSAGES_PER_SECOND)

    async def run(self) -> None:
        """Serve the socket until the client or the server closes it."""
        try:
            while (message := await self._receive())["type"] == "websocket.receive":
                while wait_seconds := self._pace.take():  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(wait_seconds)
                await self._answer(message.get("text"))
        except OSError:
            pass  # The client disconnected while a message was sent.
        finally:
            for key in list(self._watches):
                self._end(key)
            if self._sending is not None:
                self._sending.cancel()

    async def _answer(self, text: str | None) -> None:
        self._end_lapsed()
        try:
            if text is None:
                raise Malformed("Messages are JSON in text frames, not bytes")
            frame = parse_frame(text)
            named = find_keys(frame.watch)
            socket.check_watched(len(self._watches.keys() | set(named)))
        except Malformed as error:
            await self._send_all([refusal_message(error)])
            return
        for key in (*find_keys(frame.unwatch), *named):  # A refused repeat of a watch ends the watch too.
            self._end(key)
        began = time.monotonic()
        answers = await self._answers.watch(frame, partial(self._begin_all, frame))
        await self._send_all(answers, or_else=[socket.NOTHING])
        seconds = {answer["stream"]: answer["seconds"] for answer in answers if "seconds" in answer}
        for watch in [self._watches[key] for key in named if key in self._watches]:
            watch.answered(began + seconds[watch.name])

    async def _begin_all(
        self, frame: Frame, names: Mapping[StreamKey, str], _token_until_ms: int | None
    ) -> Begun:
        begins = (self._begin(name, key, wants_data=frame.data) for key, name in names.items())
        begun = await asyncio.gather(*begins, return_exceptions=True)
        return dict(zip(names, begun, strict=True))

    async def _begin(self, name: str, key: StreamKey, *, wants_data: bool) -> Watched:
        """Listen, register the watch, and read the tail. Raises ProtocolError."""
        watch = self._watches[key] = Watch(self._backend, name, key, self._moved, wants_data=wants_data)
        self._backend.wake.hub.start_waiting(self, socket.MAX_LEASE_SECONDS)
        try:
            watched = await watch.begin()
        except BaseException:
            self._end(key)
            raise
        if watched.tail.closed:
            self._end(key)
        return watched

    def _end(self, key: StreamKey) -> None:
        watch = self._watches.pop(key, None)
        if watch is not None:
            watch.close()
            self._woken.pop(watch, None)
        if not self._watches:
            self._backend.wake.hub.stop_waiting(self)

    def _end_lapsed(self) -> None:
        """End the watches whose lease has expired."""
        now = time.monotonic()
        for key in [key for key, watch in self._watches.items() if now >= watch.ends_at]:
            self._end(key)

    def _moved(self, watch: Watch) -> None:
        if self._watches.get(watch.key) is not watch:
            return  # The watch has ended meanwhile.
        self._woken[watch] = None
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_woken())

    async def _send_woken(self) -> None:
        try:
            while self._woken:
                woken, self._woken = self._woken, {}
                found = await asyncio.gather(*map(self._look, woken))
                await self._send_all([message for message in found if message])
        except OSError:
            pass  # The client has disconnected, and `run` ends too.
        finally:
            self._sending = None

    async def _look(self, watch: Watch) -> socket.Message | None:
        """Return the message for a stream whose tail has moved, or that has ended; None without news."""
        if time.monotonic() >= watch.ends_at:
            return None  # The lease has expired; `_end_lapsed` removes the watch.
        try:
            message = await watch.message()
            is_over = message is not None and "closed" in message
        except Exception as failure:  # noqa: BLE001 - the client gets a message after any error
            message, is_over = failure_message(watch.name, failure), True
        if self._watches.get(watch.key) is not watch:
            return None  # The watch has ended meanwhile.
        if is_over:
            self._end(watch.key)
        return message

    async def _send_all(self, messages: list[socket.Message], or_else: Sequence[str] = ()) -> None:
        for frame in render_messages(messages) or or_else:
            await self._send({"type": "websocket.send", "text": frame})

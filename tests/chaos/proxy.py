"""A proxy between two parties that speak HTTP/1.1, which does to their requests what a network does.

Each connection of a client has one of its own to the service. What is to happen to a request is drawn when
it has come whole, among the faults that are on at that time.
"""

import asyncio
import math
import random
import re
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.exchange import BUFFER, PIECE, Request, read_reply, read_request
from tests.chaos.listener import Listener
from tests.chaos.refusals import internal_error, throttle
from tests.chaos.schedule import CLIENTS, DYNAMODB, Fault, Kind

#: How late a held or repeated request arrives: anywhere between, small delays as likely as great ones.
LATE_SECONDS: Final = (0.1, 30.0)
#: How long a request is delayed; beyond five or six seconds the server gives up on an answer.
DELAY_SECONDS: Final = (0.02, 7.0)
#: Of replies that are cut, this part is cut inside the head.
_CUT_IN_HEAD: Final = 0.6
#: Of requests that are held, for this part the sender's connection is closed at once; else it is silent.
_CLOSED_AT_ONCE: Final = 0.8
_SILENT_SECONDS: Final = 7.0
_LATE_TRIES: Final = 20
_TOKEN: Final = re.compile(rb'"ClientRequestToken":"([^"]+)"')
_STATUS: Final = slice(9, 12)


@dataclass(slots=True)
class Tokens:
    """Transactions by their token, as DynamoDB remembers them for ten minutes: one that has been carried out
    is not carried out again. The local engine forgets them when it ends, so they are remembered here."""

    carried_out: set[bytes] = field(default_factory=set)
    unknown: set[bytes] = field(default_factory=set)

    def is_absorbed(self, token: bytes | None) -> bool:
        return token is not None and (token in self.carried_out or token in self.unknown)


def token_of(request: Request) -> bytes | None:
    found = _TOKEN.search(request.body) if request.operation == "TransactWriteItems" else None
    return found[1] if found else None


@dataclass(slots=True)
class Event:
    """One thing done to one request."""

    at: float
    link: str
    what: str
    request: str
    detail: str = ""


class Proxy(Listener):
    """Listens at `port`, passes on to `upstream_port`, which may change at any time."""

    def __init__(self, link: str, chance: random.Random, note: Callable[[Event], None]) -> None:
        super().__init__()
        self.link = link
        self.upstream_port = 0
        self.active: list[Fault] = []
        self.hits = 0
        self.chance = chance
        self._note = note
        self._tokens = Tokens()
        self._late: set[asyncio.Task[None]] = set()
        self._hurry = asyncio.Event()

    async def close(self) -> None:
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)
        await super().close()

    async def deliver_what_is_late(self) -> None:
        """Everything that is still held arrives now."""
        self._hurry.set()
        while self._late:
            await asyncio.gather(*self._late, return_exceptions=True)
        self._hurry.clear()

    def forget_open_transactions(self) -> None:
        """The engine was killed: what it was doing may be done or not, and it does not know the tokens."""
        self._tokens.carried_out |= self._tokens.unknown

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(_Passage(self, reader, writer)) as passage:
            await passage.run()

    def draw(self, request: Request) -> Fault | None:
        """The fault that this request meets."""
        for fault in self.active:
            if self.chance.random() < fault.share and self._may_hit(fault.kind, request):
                self.hits += 1
                return fault
        return None

    def _may_hit(self, kind: Kind, request: Request) -> bool:
        """A client's request is delivered twice only where the protocol makes that safe."""
        if kind in {Kind.HOLD, Kind.REPEAT}:
            return request.has_producer if self.link == CLIENTS else request.is_write
        return True

    def note(self, what: str, request: Request, detail: str = "") -> None:
        name = f"{request.operation} {request.path}"
        if self.link == DYNAMODB:
            name += f" {request.body[:400].decode('latin-1')}"
        self._note(Event(time.monotonic(), self.link, what, name, detail))

    def how_late(self) -> float:
        return math.exp(self.chance.uniform(*map(math.log, LATE_SECONDS)))

    def cut_at(self, head: int, length: int) -> int:
        """After how many bytes of a reply its connection ends: anywhere, most often inside the head."""
        in_head = self.chance.random() < _CUT_IN_HEAD or length <= head
        return self.chance.randrange(head) if in_head else self.chance.randrange(head, length)

    def is_likely(self, share: float) -> bool:
        return self.chance.random() < share

    def sent(self, request: Request) -> bytes | None:
        """The token of a transaction that is on its way."""
        token = token_of(request)
        if token is not None:
            self._tokens.unknown.add(token)
        return token

    def answered(self, token: bytes | None, head: bytes) -> None:
        if token is not None:
            self._tokens.unknown.discard(token)
            if head[_STATUS] == b"200":
                self._tokens.carried_out.add(token)

    def deliver_late(self, request: Request, what: str) -> None:
        task = asyncio.create_task(self._deliver_late(request, what, self.how_late()))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _deliver_late(self, request: Request, what: str, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        if self._tokens.is_absorbed(token_of(request)):
            self.note(what, request, f"{seconds:.1f} s late: absorbed by its token")
            return
        for _ in range(_LATE_TRIES):
            try:
                answer = await self._send_alone(request)
            except (OSError, EOFError, TimeoutError):
                await asyncio.sleep(0.5)
            else:
                self.note(what, request, f"{seconds:.1f} s late: {answer[:300].decode('latin-1')}")
                return

    async def _send_alone(self, request: Request) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream_port, limit=BUFFER)
        try:
            token = self.sent(request)
            writer.write(request.raw)
            async with asyncio.timeout(30):
                pieces = [piece async for piece in read_reply(reader, request.method)]
            self.answered(token, pieces[0])
            return pieces[0][:15] + b" " + b"".join(pieces[1:])
        finally:
            writer.close()


class _Passage:
    """One connection of a client, and the one to the service that belongs to it."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._upstream_port = 0

    async def run(self) -> None:
        while (request := await read_request(self._reader, self._writer)) is not None:
            if request.opens_socket:
                await self._pass_socket(request)
                return
            fault = self._proxy.draw(request)
            if fault is None:
                await self._pass_on(request)
            elif not await self._harm(fault.kind, request):
                return

    def close(self) -> None:
        self._writer.close()
        if self._upstream is not None:
            self._upstream[1].close()

    async def _harm(self, kind: Kind, request: Request) -> bool:
        """Whether the connection lives on."""
        proxy = self._proxy
        if kind is Kind.DELAY:
            seconds = proxy.chance.uniform(*DELAY_SECONDS) ** 2 / DELAY_SECONDS[1]
            proxy.note(kind.value, request, f"{seconds:.2f} s")
            await asyncio.sleep(seconds)
            await self._pass_on(request)
        elif kind is Kind.REPEAT:
            try:
                await self._pass_on(request)
            finally:
                proxy.deliver_late(request, kind.value)
        elif kind in {Kind.THROTTLE, Kind.INTERNAL_ERROR}:
            has_happened = kind is Kind.INTERNAL_ERROR and proxy.is_likely(0.5)
            if has_happened:
                await self._pass_on(request, deliver=False)
            proxy.note(kind.value, request, "after it was carried out" if has_happened else "")
            refused = throttle(request, proxy.chance) if kind is Kind.THROTTLE else internal_error(request)
            self._writer.write(refused)
        else:
            await self._break(kind, request)
            return False
        return True

    async def _break(self, kind: Kind, request: Request) -> None:
        """What ends the connection."""
        proxy = self._proxy
        if kind is Kind.CUT_REPLY:
            await self._cut_reply(request)
        elif kind is Kind.CUT_REQUEST:
            size = proxy.chance.randrange(len(request.raw))
            proxy.note(kind.value, request, f"after {size} of {len(request.raw)} bytes")
            _, upstream = await self._connect()
            upstream.write(request.raw[:size])
            await upstream.drain()
        elif kind is Kind.HOLD:
            proxy.deliver_late(request, kind.value)
            if not proxy.is_likely(_CLOSED_AT_ONCE):
                await asyncio.sleep(_SILENT_SECONDS)
        else:
            proxy.note(kind.value, request)
            await asyncio.sleep(_SILENT_SECONDS)

    async def _cut_reply(self, request: Request) -> None:
        proxy = self._proxy
        reader, upstream = await self._connect()
        token = proxy.sent(request)
        upstream.write(request.raw)
        reply = b""
        # An event stream has no end to wait for.
        with suppress(TimeoutError):
            async with asyncio.timeout(3):
                async for piece in read_reply(reader, request.method):
                    if not reply:
                        proxy.answered(token, piece)
                    reply += piece
        if reply:
            size = proxy.cut_at(reply.index(b"\r\n\r\n") + 4, len(reply))
            proxy.note(Kind.CUT_REPLY.value, request, f"after {size} of {len(reply)} bytes")
            self._writer.write(reply[:size])
            await self._writer.drain()

    async def _pass_on(self, request: Request, *, deliver: bool = True) -> None:
        reader, upstream = await self._connect()
        token = self._proxy.sent(request)
        upstream.write(request.raw)
        if len(request.body) > PIECE:
            await upstream.drain()
        is_head = True
        async for piece in read_reply(reader, request.method):
            if is_head:
                self._proxy.answered(token, piece)
                is_head = False
            if deliver:
                if self._writer.is_closing():
                    raise EOFError
                self._writer.write(piece)
                if len(piece) >= PIECE // 2:
                    await self._writer.drain()

    async def _pass_socket(self, request: Request) -> None:
        """All that is sent by it either way, until one side ends it, or a fault does."""
        reader, upstream = await self._connect()
        upstream.write(request.raw)
        ways = [(self._reader, upstream), (reader, self._writer)]
        copying = [asyncio.create_task(self._copy(request, *way)) for way in ways]
        try:
            await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in copying:
                each.cancel()
            await asyncio.gather(*copying, return_exceptions=True)

    async def _copy(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Until the end, or until the pieces meet a fault that ends the connection inside of one."""
        proxy = self._proxy
        while piece := await reader.read(PIECE):
            fault = proxy.draw(request)
            if fault is not None and fault.kind is Kind.DELAY:
                await asyncio.sleep(proxy.chance.uniform(*DELAY_SECONDS) ** 2 / DELAY_SECONDS[1])
            elif fault is not None:
                proxy.note(fault.kind.value, request, "a socket")
                writer.write(piece[: proxy.chance.randrange(len(piece))])
                return
            writer.write(piece)
            await writer.drain()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises OSError. A kept connection that the service has closed is replaced."""
        if self._upstream is not None:
            reader, writer = self._upstream
            is_same = self._upstream_port == self._proxy.upstream_port
            if is_same and not (reader.at_eof() or writer.is_closing()):
                return self._upstream
            writer.close()
        self._upstream_port = self._proxy.upstream_port
        self._upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port, limit=BUFFER)
        return self._upstream

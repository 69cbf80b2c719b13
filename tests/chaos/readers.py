"""Readers of streams that live as long as the campaign. What they are given is recorded, page by page."""

import asyncio
import json
import time
from abc import abstractmethod
from contextlib import suppress
from typing import Final
from zlib import crc32

from tests.chaos.client import Answer, NoAnswer
from tests.chaos.python_client import PATIENT
from tests.chaos.recording import Page, StreamHistory, Violation
from tests.chaos.scene import BUSY, REFUSED_THOUGH_RIGHT, VANISHED, Party, Scene, read_page, stored_bytes
from tidemark.client import AsyncStream

IDLE_SECONDS: Final = 40.0
_PAUSE_SECONDS: Final = 0.2
#: After the last fault, for the appends that had begun; and how long a reader may be behind them then.
_LAST_APPENDS_SECONDS: Final = 10.0
_WOKEN_SECONDS: Final = 60.0
#: A catch-up reader stops after so many pages.
_PAGES: Final = 8


class Reader(Party):
    offset = 0

    async def run(self) -> None:
        while not self.scene.is_over:
            try:
                await self.read()
            except NoAnswer:
                await asyncio.sleep(_PAUSE_SECONDS)
        await self.client.aclose()

    @abstractmethod
    async def read(self) -> None:
        """Once. Raises NoAnswer."""

    def keep(self, page: Page) -> None:
        self.history.pages.append(page)
        self.offset = page.end

    async def refuse(self, what: str, answer: Answer) -> None:
        """Of a stream that is there, at an offset that was given."""
        if answer.status != BUSY and not self.scene.is_server_fault(self.path, what, answer):
            wrong = VANISHED if answer.status == 404 else REFUSED_THOUGH_RIGHT
            self.scene.step(self.path, what, answer, {200, 204}, wrong)
        await asyncio.sleep(_PAUSE_SECONDS)

    def some_offset(self) -> int:
        """The end of an append that was acknowledged, most often of a late one; or the beginning."""
        appends = self.history.appends
        if not appends or self.chance.random() < 0.05:
            return 0
        back = min(len(appends), 500)
        append = appends[-self.chance.randrange(1, back + 1)]
        return append.end if append.end >= 0 and append.exact else 0


class LongPollReader(Reader):
    """Follows the stream from its beginning."""

    async def read(self) -> None:
        known_end = self.history.known_end
        answer = await self.client.request(
            "GET", f"{self.path}?offset={self.offset:016d}&live=long-poll", timeout_seconds=IDLE_SECONDS
        )
        if answer.status == 200:
            self.keep(read_page(self.name, self.offset, answer, known_end))
        elif answer.status == 204:
            self.keep(Page(self.name, self.offset, answer.next_offset, 0, 0, known_end, answer.up_to_date))
        else:
            await self.refuse("long-poll", answer)


class CatchUpReader(Reader):
    """Reads from anywhere to the tail, again and again."""

    async def read(self) -> None:
        self.offset = self.some_offset()
        for _ in range(_PAGES):
            known_end = self.history.known_end
            answer = await self.client.request("GET", f"{self.path}?offset={self.offset:016d}")
            if answer.status != 200:
                await self.refuse("catch-up", answer)
                return
            self.keep(read_page(self.name, self.offset, answer, known_end))
            if answer.up_to_date:
                break
        await asyncio.sleep(self.chance.uniform(0.1, 0.6))


class EventReader(Reader):
    """Follows the stream by server-sent events, from its beginning, over many connections, as a browser's
    EventSource does."""

    event_id = ""

    async def read(self) -> None:
        known_end = self.history.known_end
        until = time.monotonic() + self.chance.uniform(1, 20)
        data = b""
        place = f"{self.path}?offset=-1&live=sse"
        async with self.client.events(place, self.event_id, IDLE_SECONDS) as (status, events):
            if status != 200:
                await self.refuse("event stream", Answer(status, {}, b""))
                return
            async for event in events:
                data = self._take(event, data, known_end)
                if time.monotonic() > until or self.scene.is_over:
                    return

    def _take(self, event: dict[str, str], data: bytes, known_end: int) -> bytes:
        """What is read but not yet confirmed by its control event."""
        if event["event"] == "data":
            return data + stored_bytes(event["data"].encode())
        end = int(json.loads(event["data"])["streamNextOffset"])
        self.keep(Page(self.name, self.offset, end, crc32(data), len(data), known_end))
        self.event_id = event["id"]
        return b""


class SocketReader(Party):
    """Follows the stream from its beginning by Tidemark's own client, which waits at a socket. What was
    acknowledged before the end it must be told of without another append to wake it."""

    offset = 0

    def __init__(self, scene: Scene, path: str, history: StreamHistory, name: str, port: int) -> None:
        super().__init__(scene, path, history, name, port)
        self._moved = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._follow())
            await self._be_told_all()
            following.cancel()

    async def _follow(self) -> None:
        stream = AsyncStream(f"http://127.0.0.1:{self.client.port}{self.path}", retry=PATIENT)
        async for chunk in stream.follow(live="socket"):
            data, end = stored_bytes(chunk.data), int(chunk.offset)
            self.history.pages.append(Page(self.name, self.offset, end, crc32(data), len(data)))
            self.offset = end
            self._moved.set()

    async def _be_told_all(self) -> None:
        await self.scene.over.wait()
        await asyncio.sleep(_LAST_APPENDS_SECONDS)
        wanted = self.history.known_end
        with suppress(TimeoutError):
            async with asyncio.timeout(_WOKEN_SECONDS):
                while self.offset < wanted:
                    self._moved.clear()
                    await self._moved.wait()
        if self.offset < wanted:
            text = f"{self.name} has read to {self.offset}, and is not told of {wanted}"
            self.scene.recordings.violations.append(Violation("not woken", self.path, text))

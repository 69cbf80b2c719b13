"""Tidemark's own client as writer and reader, through the proxy that harms clients' connections."""

import asyncio
import json
from contextlib import suppress
from typing import Any, Final

from tests.chaos.judge import LOST
from tests.chaos.lifecycles import Lifecycle
from tests.chaos.recording import Violation
from tests.chaos.scene import Left
from tidemark.client import AsyncStream, Retry, StreamError

_MESSAGES: Final = 200
#: The client gives up later than any row of faults lasts; one that does not end fails the campaign's phase.
PATIENT: Final = Retry(max_retries=1000, max_delay_seconds=1.0)


class PythonClient(Lifecycle):
    """A producer writes a row of numbers while a reader follows: each number once and in order, whatever
    breaks between. The lives take turns in how the reader waits."""

    _lives = 0

    async def live(self, name: str) -> None:
        self._lives += 1
        url = f"http://127.0.0.1:{self.scene.clients_port}/v1/stream/{name}"
        reader = asyncio.create_task(self._read(url, ("socket", "long-poll", "sse")[self._lives % 3]))
        try:
            await self._write(url)
            found = await reader
        except StreamError as failure:
            reader.cancel()
            with suppress(asyncio.CancelledError, StreamError):
                await reader
            text = f"the Python client at {self.scene.elapsed:.1f} s: {failure!r}"
            self.scene.recordings.violations.append(Violation(LOST, name, text))
            raise Left from failure
        expected = json.dumps(list(range(_MESSAGES))).encode()
        self.scene.compare(name, "the Python client", expected, json.dumps(found).encode(), LOST)

    async def _write(self, url: str) -> None:
        stream = await AsyncStream.create(url, content_type="application/json", retry=PATIENT)
        async with stream.producer(self.name, linger_seconds=0.01) as producer:
            for number in range(_MESSAGES):
                await producer.append(number)
                if number % 10 == 0:
                    await asyncio.sleep(self.chance.uniform(0, 0.2))
        self.scene.acknowledged += _MESSAGES
        self.scene.messages += _MESSAGES

    async def _read(self, url: str, live: Any) -> list[Any]:
        following = AsyncStream(url, retry=PATIENT).follow(live=live, missing="wait")
        return [message async for chunk in following for message in chunk.messages]

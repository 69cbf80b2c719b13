"""Readers that follow a name over its lives. None is given two streams as one, or one without its start."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from tests.chaos.client import Client, NoAnswer
from tests.chaos.lifecycles import Recreator
from tests.chaos.python_client import PATIENT
from tests.chaos.readers import IDLE_SECONDS
from tests.chaos.recording import Violation, read_message
from tidemark.client import AsyncStream, StreamError

SPLICED: Final = "a reader was given another stream as the same one"
_PAUSE_SECONDS: Final = 0.1


class Followed(Recreator):
    """Deletes its stream and makes it again, while an EventSource and the Python client follow."""

    async def live(self, name: str) -> None:
        path = f"/v1/stream/{name}"
        readers = [self._event_source(path), *(self._python(path, live) for live in ("socket", "sse"))]
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(reader) for reader in readers]
            try:
                await super().live(name)
            finally:
                for each in following:
                    each.cancel()

    async def _event_source(self, path: str) -> None:
        """Where it is refused it begins anew, as a page does."""
        client, event_id, seen = Client(self.scene.clients_port), "", list[str]()
        while True:
            with suppress(NoAnswer):
                place = f"{path}?offset=-1&live=sse"
                async with client.events(place, event_id, IDLE_SECONDS) as (status, events):
                    if status in {404, 410}:
                        event_id, seen = "", []
                    async for event in events:  # Of a refusal there are none.
                        event_id = event["id"]
                        if event["event"] == "data":
                            seen += json.loads(event["data"])
                            self._check(path, "an EventSource", seen)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _python(self, path: str, live: Any) -> None:
        while True:
            seen = list[str]()
            with suppress(StreamError):
                stream = AsyncStream(f"http://127.0.0.1:{self.scene.clients_port}{path}", retry=PATIENT)
                async for chunk in stream.follow(live=live):
                    seen += chunk.messages
                    self._check(path, f"the Python client by {live}", seen)
            await asyncio.sleep(_PAUSE_SECONDS)

    def _check(self, path: str, who: str, seen: Sequence[str]) -> None:
        if text := splice_in(seen):
            self.scene.recordings.violations.append(Violation(SPLICED, path, f"{who} was given {text}"))


def splice_in(seen: Sequence[str]) -> str | None:
    """Where they are not the messages of one writer, which has one life, from its first one on."""
    before = None
    for message in seen:
        writer, number, part = read_message(message.encode())
        if before is None:
            is_next = (number, part) == (0, 0)
        else:
            is_next = (writer, number, part) in {
                (before[0], before[1], before[2] + 1),
                (before[0], before[1] + 1, 0),
            }
        if not is_next:
            return f"{message} behind {before}"
        before = writer, number, part
    return None

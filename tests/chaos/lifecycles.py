"""Writers whose streams come and go: closed, deleted, made again under the same name, forked.

Each does one thing after another, and knows what every answer has to be. Where it cannot know, because a
request timed out and may still be carried out, it leaves the name and takes another.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import Final

from tests.chaos.client import JSON
from tests.chaos.recording import Append, StreamHistory, render_body, render_messages
from tests.chaos.scene import BRICKED, LARGE_PADDING, RESURRECTED, VANISHED, Insisting

#: So many of the deleted names are never used again, and looked at in the end.
_LEFT_DEAD: Final = 0.2
_PAUSE_SECONDS: Final = 0.3


class Owner(Insisting):
    """Creates and deletes streams that nobody else touches."""

    async def create(
        self, path: str, headers: dict[str, str] | None = None, *, body: bytes = b"", again: bool = False
    ) -> bool:
        """Whether the stream is there, and is ours. Where it was deleted before, only 201 is right."""
        answer = await self.insist(
            "PUT",
            path,
            body,
            headers=JSON | (headers or {}),
            what="create again" if again else "create",
            at_first={201},
            later={200},
            wrong=RESURRECTED if again else BRICKED,
        )
        return answer is not None

    async def delete(self, path: str) -> bool:
        answer = await self.insist(
            "DELETE", path, what="delete", at_first={204}, later={404, 410}, wrong=VANISHED
        )
        return answer is not None

    async def is_gone(self, path: str, statuses: frozenset[int] = frozenset({404})) -> bool:
        answer = await self.insist(
            "GET", path, what="read what is deleted", at_first=set(statuses), wrong=RESURRECTED
        )
        return answer is not None

    def history(self, path: str, life: int | str = 0) -> StreamHistory:
        return self.scene.recordings.history(f"{path} ({life})")


class Lifecycle(Owner):
    """Lives one life after another under names of its own."""

    async def run(self) -> None:
        for number in itertools.count():
            if self.scene.is_over:
                return
            await self.live(f"{self.name}-{number}")
            await self.pause(_PAUSE_SECONDS)

    @abstractmethod
    async def live(self, name: str) -> None:
        """Until it is left, or the campaign is over."""


class Recreator(Lifecycle):
    """Creates, appends, reads, deletes, and again under the same name."""

    async def live(self, name: str) -> None:
        path = f"/v1/stream/{name}"
        for life in itertools.count():
            if self.scene.is_over or not await self._live_once(path, f"{name}.{life}", life):
                return
            if self.chance.random() < _LEFT_DEAD:
                self.scene.dead.append(path)
                return

    async def _live_once(self, path: str, writer: str, life: int) -> bool:
        """Whether it is deleted for certain."""
        history = self.history(path, life)
        if not await self.create(path, again=life > 0):
            return False
        if not await self.append_some(path, history, writer, range(self.chance.randrange(1, 6))):
            return False
        history.log = await self.read_all(path, history)
        if history.log is None or not await self.delete(path):
            return False
        return self.chance.random() < 0.5 or await self.is_gone(path)


class Closer(Lifecycle):
    """Creates with a body that goes to S3, appends, closes with a last append, and tries to append once more.
    What it made is there to the end."""

    async def live(self, name: str) -> None:
        path = f"/v1/stream/{name}"
        history = self.history(path)
        first = Append(f"{name}.first", 0, 1, time.monotonic())
        body = render_messages(first, LARGE_PADDING)[0]
        if not await self.create(path, body=body):
            return
        history.appends.append(first)
        self.scene.acknowledge(history, first, len(body) + 1)
        if not await self.append_some(path, history, name, range(3)):
            return
        last = Append(name, 3, 1, time.monotonic())
        with_close = await self.append(path, history, last, **{"Stream-Closed": "true"})
        if with_close is None:
            return
        late = Append(name, 4, 1, time.monotonic())
        body = render_body(render_messages(late))
        await self.append_refused(path, history, late, body=body, headers=JSON, status=409)
        if await self.read_all(path, history) is None:
            return
        head = await self.insist("HEAD", path, what="head", at_first={200}, wrong=VANISHED)
        if head is not None and not head.closed:
            self.scene.step(path, "head of a closed stream", head, set(), "a closed stream is open")
        self.scene.keep(path, history)
        await self.pause(1)


@dataclass(slots=True)
class Made:
    """A fork that begins at the offset `at` of its source."""

    path: str
    history: StreamHistory
    at: int


class Fork(Owner):
    """One fork, made beside others."""

    async def make(self, source: str, history: StreamHistory) -> Made | None:
        """With some appends of its own."""
        await asyncio.sleep(self.chance.uniform(0, 1))
        ends = [append.end for append in history.appends if append.end >= 0]
        at, path = self.chance.choice(ends), f"/v1/stream/{self.name}"
        fork = self.history(path)
        if not await self.create(path, {"Stream-Forked-From": source, "Stream-Fork-Offset": f"{at:016d}"}):
            return None
        if not await self.append_some(path, fork, self.name, range(3)):
            return None
        return Made(path, fork, at)


class Forker(Lifecycle):
    """Forks a stream while others append to it, deletes it under its forks, and reads them."""

    async def live(self, name: str) -> None:
        source = f"/v1/stream/{name}"
        history = self.history(source)
        if not await self.create(source):
            return
        if not await self.append_some(source, history, f"{name}.0", range(2)):
            return
        forks = await self._fork_a_live_stream(source, history)
        history.log = await self.read_all(source, history)
        if history.log is None or forks is None:
            return
        source_first = self.chance.random() < 0.5
        if source_first and not await self._end(source):
            return
        for fork in forks:
            fork.history.inherited = history.log[: fork.at]
            fork.history.log = await self.read_all(fork.path, fork.history)
            if fork.history.log is None or not await self.delete(fork.path):
                return
        if not source_first:
            await self._end(source)

    async def _fork_a_live_stream(self, source: str, history: StreamHistory) -> list[Made] | None:
        """None where the outcome of something is not known."""
        writers = [Owner(self.scene, f"{self.name}.{number}.{time.monotonic_ns()}") for number in (1, 2)]
        writing = [
            asyncio.create_task(each.append_some(source, history, each.name, range(8))) for each in writers
        ]
        names = [f"{source.rpartition('/')[2]}-fork-{number}" for number in range(3)]
        forks = await asyncio.gather(*(Fork(self.scene, name).make(source, history) for name in names))
        made = [fork for fork in forks if fork is not None]
        is_written = all([await each for each in writing])
        return made if is_written and len(made) == len(forks) else None

    async def _end(self, source: str) -> bool:
        """A source that forks live on is kept for them, and not to be seen."""
        return await self.delete(source) and await self.is_gone(source, frozenset({404, 410}))

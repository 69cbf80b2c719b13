"""Writers whose streams come and go: closed, deleted, made again under the same name, forked.

Each does one thing after another, and knows what every answer has to be. Where it cannot know, because a
request timed out and may still be carried out, it leaves the name and takes another.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import abstractmethod
from typing import Final

from tests.chaos.client import JSON
from tests.chaos.recording import Append, StreamHistory, render_body, render_messages
from tests.chaos.scene import BRICKED, RESURRECTED, VANISHED, Insisting, Scene

#: So many of the deleted names are never used again, and looked at in the end.
_LEFT_DEAD: Final = 0.2
_PAUSE_SECONDS: Final = 0.3


class Lifecycle(Insisting):
    """Lives one life after another under names of its own."""

    def __init__(self, scene: Scene, name: str) -> None:
        super().__init__(scene, name)
        self._names = itertools.count()

    async def run(self) -> None:
        while not self.scene.is_over:
            await self.live(f"{self.name}-{next(self._names)}")
            await self.pause(_PAUSE_SECONDS)

    @abstractmethod
    async def live(self, name: str) -> None:
        """Until it is left, or the campaign is over."""

    async def create(self, path: str, headers: dict[str, str] | None = None, *, again: bool = False) -> bool:
        """Whether the stream is there, and is ours. Where it was deleted before, only 201 is right."""
        answer = await self.insist(
            "PUT",
            path,
            headers=JSON | (headers or {}),
            what="create again" if again else "create",
            at_first={201},
            later={200},
            wrong=RESURRECTED if again else BRICKED,
        )
        return answer is not None

    async def delete(self, path: str) -> bool:
        answer = await self.insist(
            "DELETE", path, what="delete", at_first={204}, later={404}, wrong=VANISHED
        )
        return answer is not None

    async def is_gone(self, path: str, statuses: frozenset[int] = frozenset({404})) -> bool:
        answer = await self.insist(
            "GET", path, what="read what is deleted", at_first=set(statuses), wrong=RESURRECTED
        )
        return answer is not None

    def history(self, path: str, life: int | str = 0) -> StreamHistory:
        return self.scene.recordings.history(f"{path} ({life})")


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
    """Appends, closes with a last append, and tries to append once more."""

    async def live(self, name: str) -> None:
        path = f"/v1/stream/{name}"
        history = self.history(path)
        if not await self.create(path):
            return
        if not await self.append_some(path, history, name, range(3)):
            return
        last = Append(name, 3, 1, time.monotonic())
        with_close = await self.append(path, history, last, **{"Stream-Closed": "true"})
        if with_close is None:
            return
        late = Append(name, 4, 1, time.monotonic())
        await self.append_refused(path, history, late, render_body(render_messages(late)), JSON, 409)
        if await self.read_all(path, history) is None:
            return
        head = await self.insist("HEAD", path, what="head", at_first={200}, wrong=VANISHED)
        if head is not None and not head.closed:
            self.scene.step(path, "head of a closed stream", head, set(), "a closed stream is open")
        self.scene.kept.append((path, history))
        await self.pause(1)


class Forker(Lifecycle):
    """Forks a stream while others append to it, deletes it under its forks, and reads them."""

    async def live(self, name: str) -> None:
        source, history = f"/v1/stream/{name}", self.history(f"/v1/stream/{name}")
        if not await self.create(source):
            return
        if not await self.append_some(source, history, f"{name}.0", range(2)):
            return
        others = [Insisting(self.scene, f"{name}.{number}") for number in (1, 2)]
        written, *forks = await asyncio.gather(
            asyncio.gather(*(each.append_some(source, history, each.name, range(8)) for each in others)),
            *(Fork(self.scene, f"{name}-fork-{number}").make(source, history) for number in range(3)),
        )
        if not all(written):
            return
        history.log = await self.read_all(source, history)
        made = [fork for fork in forks if fork is not None]
        if history.log is None or len(made) < len(forks):
            return
        is_deleted = self.chance.random() < 0.5
        if is_deleted and not (await self.delete(source) and await self.is_gone(source, frozenset({404, 410}))):
            return
        for path, fork, at in made:
            fork.inherited = history.log[:at]
            fork.log = await self.read_all(path, fork)
            if fork.log is None or not await self.delete(path):
                return
        if is_deleted or await self.delete(source):
            await self.is_gone(source, frozenset({404, 410}))


class Fork(Lifecycle):
    """One fork, made beside others."""

    async def make(self, source: str, history: StreamHistory) -> tuple[str, StreamHistory, int] | None:
        """With some appends of its own, and where it begins to be one."""
        await asyncio.sleep(self.chance.uniform(0, 1))
        ends = [append.end for append in history.appends if append.end >= 0]
        at, path = self.chance.choice(ends), f"/v1/stream/{self.name}"
        headers = {"Stream-Forked-From": source, "Stream-Fork-Offset": f"{at:016d}"}
        fork = self.history(path)
        if not await self.create(path, headers):
            return None
        if not await self.append_some(path, fork, self.name, range(3)):
            return None
        return path, fork, at

"""Writers whose streams come and go: closed, deleted, made again under the same name, forked.

Each does one thing after another, and knows what every answer has to be. Where it cannot know, because a
request timed out and may still be carried out, it leaves the name (`Left`) and takes another.
"""

import asyncio
import itertools
import time
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tests.chaos.client import JSON
from tests.chaos.recording import Append, StreamHistory, render_body, render_messages
from tests.chaos.scene import BRICKED, LARGE_PADDING, RESURRECTED, VANISHED, Insisting, Left

#: So many of the deleted names are never used again, and looked at in the end.
_LEFT_DEAD: Final = 0.2
_PAUSE_SECONDS: Final = 0.3


class Owner(Insisting):
    """Creates and deletes streams that nobody else touches."""

    async def create(
        self, path: str, headers: dict[str, str] | None = None, *, body: bytes = b"", again: bool = False
    ) -> None:
        """The stream is there, and is ours. Where it was deleted before, only 201 is right."""
        what, wrong = ("create again", RESURRECTED) if again else ("create", BRICKED)
        asked = JSON | (headers or {})
        await self.insist("PUT", path, body, asked, what=what, at_first={201}, later={200}, wrong=wrong)

    async def delete(self, path: str) -> None:
        await self.insist("DELETE", path, what="delete", at_first={204}, later={404, 410}, wrong=VANISHED)

    async def is_gone(self, path: str, *statuses: int) -> None:
        allowed = set(statuses) or {404}
        await self.insist("GET", path, what="read what is deleted", at_first=allowed, wrong=RESURRECTED)

    def history(self, path: str, life: int | str = 0) -> StreamHistory:
        return self.scene.recordings.history(f"{path} ({life})")


class Lifecycle(Owner):
    """Lives one life after another under names of its own."""

    async def run(self) -> None:
        for number in itertools.count():
            if self.scene.is_over:
                return
            with suppress(Left):
                await self.live(f"{self.name}-{number}")
            await self.pause(_PAUSE_SECONDS)

    @abstractmethod
    async def live(self, name: str) -> None:
        """Until it is left, or the campaign is over."""

    def is_last_life(self, path: str) -> bool:
        """Of a name that is deleted now."""
        is_dead = self.chance.random() < _LEFT_DEAD
        if is_dead:
            self.scene.dead.append(path)
        return is_dead or self.scene.is_over


class Recreator(Lifecycle):
    """Creates, appends, reads, deletes, and again under the same name."""

    async def live(self, name: str) -> None:
        path = f"/v1/stream/{name}"
        for life in itertools.count():
            history = self.history(path, life)
            await self.create(path, again=life > 0)
            await self.append_some(path, history, f"{name}.{life}", self.chance.randrange(1, 6))
            await self.read_log(path, history)
            await self.delete(path)
            if self.chance.random() < 0.5:
                await self.is_gone(path)
            if self.is_last_life(path):
                return


class Closer(Lifecycle):
    """Creates with a body that goes to S3, appends, closes with a last append, and tries to append once more.
    What it made is there to the end."""

    async def live(self, name: str) -> None:
        path = f"/v1/stream/{name}"
        history = self.history(path)
        first = Append(f"{name}.first", 0, 1, time.monotonic())
        body = render_messages(first, LARGE_PADDING)[0]
        await self.create(path, body=body)
        history.appends.append(first)
        self.scene.acknowledge(history, first, len(body) + 1)
        await self.append_some(path, history, name, 3)
        await self.append(path, history, Append(name, 3, 1, time.monotonic()), **{"Stream-Closed": "true"})
        late = Append(name, 4, 1, time.monotonic())
        await self.append_refused(path, history, late, render_body(render_messages(late)), JSON, 409)
        await self.read_log(path, history)
        head = await self.insist("HEAD", path, what="head", at_first={200}, wrong=VANISHED)
        if not head.closed:
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

    async def make(self, source: str, history: StreamHistory) -> Made:
        """With some appends of its own."""
        await asyncio.sleep(self.chance.uniform(0, 1))
        at = self.chance.choice([append.end for append in history.appends if append.end >= 0])
        path = f"/v1/stream/{self.name}"
        made = Made(path, self.history(path), at)
        await self.create(path, {"Stream-Forked-From": source, "Stream-Fork-Offset": f"{at:016d}"})
        await self.append_some(path, made.history, self.name, 3)
        return made


class Forker(Lifecycle):
    """Forks a stream while others append to it, deletes it under its forks, and reads them."""

    async def live(self, name: str) -> None:
        source = f"/v1/stream/{name}"
        history = self.history(source)
        await self.create(source)
        await self.append_some(source, history, f"{name}.0", 2)
        writers = [Owner(self.scene, f"{self.name}.{number}.{time.monotonic_ns()}") for number in (1, 2)]
        done = await asyncio.gather(
            *(Fork(self.scene, f"{name}-fork-{number}").make(source, history) for number in range(3)),
            *(each.append_some(source, history, each.name, 8) for each in writers),
            return_exceptions=True,
        )
        log = await self.read_log(source, history)
        for failure in (each for each in done if isinstance(each, BaseException)):
            raise failure
        source_first = self.chance.random() < 0.5
        if source_first:
            await self._end(source)
        for fork in (each for each in done if isinstance(each, Made)):
            fork.history.inherited = log[: fork.at]
            await self.read_log(fork.path, fork.history)
            await self.delete(fork.path)
        if not source_first:
            await self._end(source)

    async def _end(self, source: str) -> None:
        """A source that forks live on is kept for them, and not to be seen."""
        await self.delete(source)
        await self.is_gone(source, 404, 410)

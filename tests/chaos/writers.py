"""Writers on streams that live as long as the campaign. They give up on an answer soon, as clients do."""

import asyncio
import math
import time
from abc import abstractmethod
from typing import Final

from tests.chaos import scene as scenes
from tests.chaos.client import JSON, Answer, NoAnswer
from tests.chaos.recording import Append, Outcome, StreamHistory, render_body, render_messages

TIMEOUTS_SECONDS: Final = (3.0, 12.0)
_PAUSE_SECONDS: Final = 0.05
#: So often a producer begins a new epoch, and with it at sequence 0, where a server that has lost its state
#: would take anything.
_RESTARTED: Final = 0.03


class Writer(scenes.Party):
    """Appends one after another."""

    #: One in so many appends is large.
    large_one_in = 400

    async def run(self) -> None:
        number = 0
        while not self.scene.is_over:
            append = Append(self.name, number, self._messages(), time.monotonic())
            self.history.appends.append(append)
            padding = scenes.LARGE_PADDING if self.chance.randrange(self.large_one_in) == 0 else 0
            await self.deliver(append, render_body(render_messages(append, padding)))
            number += 1
        await self.client.aclose()

    def _messages(self) -> int:
        return self.chance.randrange(2, 9) if self.chance.random() < 0.2 else 1

    @abstractmethod
    async def deliver(self, append: Append, body: bytes) -> None:
        """Sends it, once or until it is answered, and writes down what came of it."""

    async def post(self, body: bytes, headers: dict[str, str]) -> Answer | None:
        """None, after a pause, where nobody knows what came of it."""
        try:
            timeout_seconds = self.chance.uniform(*TIMEOUTS_SECONDS)
            answer = await self.client.request("POST", self.path, body, JSON | headers, timeout_seconds)
        except NoAnswer:
            await asyncio.sleep(_PAUSE_SECONDS)
            return None
        if answer.status == scenes.BUSY or self.scene.is_server_fault(self.path, "append", answer):
            await asyncio.sleep(_PAUSE_SECONDS)
        return answer

    def is_left(self, append: Append, answer: Answer | None) -> bool:
        """Whether to repeat it no more: the last fault is long over, and no answer says anything."""
        is_left = self.scene.is_for_good(append.sent, math.inf)
        if is_left:
            self.scene.step(
                self.path, "append", answer or scenes.NO_ANSWER, set(), scenes.UNAVAILABLE_FOR_GOOD
            )
        return is_left

    def refuse(self, append: Append, answer: Answer, allowed: set[int], *, is_first: bool = True) -> None:
        """An answer that is none of those this writer can get. An earlier try may have landed."""
        if is_first:
            append.outcome = Outcome.REFUSED
        wrong = scenes.VANISHED if answer.status == 404 else scenes.REFUSED_THOUGH_RIGHT
        self.scene.step(self.path, "append", answer, allowed, wrong)


class PlainWriter(Writer):
    """Sends each append once."""

    large_one_in = 100

    async def deliver(self, append: Append, body: bytes) -> None:
        answer = await self.post(body, {})
        if answer is None or (answer.status >= 500 and not scenes.says_nothing_happened(answer)):
            return
        if answer.status == 204:
            self.scene.acknowledge(self.history, append, answer.next_offset)
        elif answer.status in {scenes.BUSY, scenes.UNAVAILABLE}:
            append.outcome = Outcome.REFUSED
        else:
            self.refuse(append, answer, {204})


class Producer(Writer):
    """Repeats each append until it is acknowledged. Now and then it ends without knowing, as a producer that
    is restarted does, and goes on in the next epoch; and then somebody may still write in the old one."""

    is_strict = True
    _epoch = _seq = 0
    _fenced: int | None = None

    async def deliver(self, append: Append, body: bytes) -> None:
        statuses, answer = {200}, None
        while not self.is_left(append, answer):
            answer = await self.post(body, self._claim(self._epoch, self._seq))
            if answer is None or answer.status >= 500:
                statuses.add(204)
                if self.chance.random() < 0.1:
                    self._restart()
                    return
            elif answer.status in statuses:
                self.scene.acknowledge(self.history, append, answer.next_offset)
                self._seq += 1
                await self._write_in_the_old_epoch()
                if self.chance.random() < _RESTARTED:
                    self._restart()
                return
            elif answer.status != scenes.BUSY:
                self.refuse(append, answer, statuses, is_first=204 not in statuses)
                # What was wrong with it may be what the server believes: go on from a clean state.
                self._restart()
                return

    def _claim(self, epoch: int, seq: int) -> dict[str, str]:
        return {"Producer-Id": self.name, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}

    def _restart(self) -> None:
        self._fenced, self._epoch, self._seq = self._epoch, self._epoch + 1, 0

    async def _write_in_the_old_epoch(self) -> None:
        """Once the new one is known to the server: 403, and it must never be seen."""
        epoch, self._fenced = self._fenced, None
        if epoch is None:
            return
        number = 10_000_000 + epoch
        zombie = Append(f"{self.name}-zombie", number, 1, time.monotonic(), outcome=Outcome.REFUSED)
        self.history.appends.append(zombie)
        answer = await self.post(render_body(render_messages(zombie)), self._claim(epoch, 0))
        if answer is not None and answer.status != scenes.BUSY and answer.status < 500:
            self.scene.step(self.path, "append in an old epoch", answer, {403}, scenes.LET_IN)


class SequencedWriter(Writer):
    """The only writer of its stream, with Stream-Seq: 409 after a lost answer says that it has landed."""

    is_strict = True

    async def deliver(self, append: Append, body: bytes) -> None:
        statuses, answer = {204}, None
        while not self.is_left(append, answer):
            answer = await self.post(body, {"Stream-Seq": f"{append.number:010d}"})
            if answer is None or answer.status >= 500:
                statuses.add(409)
            elif answer.status in statuses:
                self.scene.acknowledge(
                    self.history, append, answer.next_offset if answer.status == 204 else -1
                )
                return
            elif answer.status != scenes.BUSY:
                self.refuse(append, answer, statuses, is_first=409 not in statuses)
                return


class Intruder(scenes.Insisting):
    """Sends what must be refused, with an id that must never be seen."""

    def __init__(self, scene: scenes.Scene, path: str, history: StreamHistory, name: str) -> None:
        super().__init__(scene, name)
        self._path, self._history = path, history

    async def run(self) -> None:
        number = 0
        while not self.scene.is_over:
            append = Append(self.name, number, 1, time.monotonic())
            body = render_messages(append)[0]
            gap = {"Producer-Id": f"{self.name}-{number}", "Producer-Epoch": "0", "Producer-Seq": "5"}
            bad_body, headers, status = self.chance.choice(
                (
                    (body[:-1], JSON, 400),
                    (body + b",", JSON, 400),
                    (body, {"Content-Type": "text/plain"}, 409),
                    (body, JSON | gap, 409),
                    (body, JSON | {"Producer-Id": "half"}, 400),
                )
            )
            await self.append_refused(self._path, self._history, append, bad_body, headers, status)
            number += 1
            await self.pause(0.5)

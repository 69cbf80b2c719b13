"""The receiver: one thread receives while a request waits. If in doubt, it wakes too many readers rather than
too few."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.support import Clock, a_key
from tests.wake.support import PATIENCE_SECONDS, until
from tidemark.aws.sqs import QueueGone, Queues, QueueUnavailable
from tidemark.log.schema import log_pk
from tidemark.protocol.stream_key import StreamKey
from tidemark.wake import wake as module
from tidemark.wake.hub import Hub
from tidemark.wake.notifier import WakeMessage, encode_message
from tidemark.wake.wake import Receiver

Answer = list[str] | Exception


class Scripted(Queues):
    """The test decides what each receive returns."""

    def __init__(self) -> None:
        self.answers: queue.Queue[Answer] = queue.Queue()
        self.asked: queue.Queue[tuple[str, int]] = queue.Queue()
        self.made = 0
        self.deleted: list[str] = []
        self.refuses = False

    def create(self, now_ms: int) -> str:
        if self.refuses:
            raise QueueUnavailable("down")
        self.made += 1
        return f"queue {self.made}"

    def receive(self, url: str, wait_seconds: int) -> list[str]:
        self.asked.put((url, wait_seconds))
        # Longer than any test waits: nobody must be helped by this giving up.
        answer = self.answers.get(timeout=10 * PATIENCE_SECONDS)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def delete(self, url: str) -> None:
        self.deleted.append(url)
        self.answers.put(QueueGone())

    def next_receive(self) -> tuple[str, int]:
        return self.asked.get(timeout=PATIENCE_SECONDS)


class Reader(threading.Thread):
    """Waits at a stream, on a loop of its own, and counts how often it is woken."""

    def __init__(self, hub: Hub, key: StreamKey, seconds: float = 1000) -> None:
        super().__init__(daemon=True)
        self._hub, self._key, self._seconds = hub, key, seconds
        self._loop = asyncio.new_event_loop()
        self.wakes = 0
        self._task: asyncio.Task[None] | None = None

    def run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._wait())
        self._loop.run_until_complete(asyncio.wait([self._task]))
        self._loop.close()

    async def _wait(self) -> None:
        with self._hub.listen(self._key) as listener:
            while True:
                self.wakes += await listener.wait(self._seconds)

    def has_been_rung(self, times: int) -> bool:
        return self.wakes == times

    def leave(self) -> None:
        assert self._task is not None
        if self.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self.join(PATIENCE_SECONDS)


class Scene:
    """One process: its hub, its receiver, a scripted queue, readers."""

    def __init__(self, receive_seconds: int = 20) -> None:
        self.hub, self.queues, self.clock = Hub(), Scripted(), Clock()
        self.receiver = Receiver(self.hub, self.queues, self.clock, receive_seconds)
        self.readers: list[Reader] = []

    def reader(self, key: StreamKey, seconds: float = 1000) -> Reader:
        reader = Reader(self.hub, key, seconds)
        reader.start()
        self.readers.append(reader)
        until(lambda: self.hub.listening == len(self.readers) and len(self.hub._waiting) == len(self.readers))
        self.receiver.ensure_running()
        return reader

    def all_wait(self) -> bool:
        return len(self.hub._waiting) == len(self.readers)

    def close(self) -> None:
        for reader in self.readers:
            reader.leave()
        self.receiver.close()
        for _ in range(10):
            self.queues.answers.put([])


@pytest.fixture
def make_scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Scene]]:
    """A queue is usable at once here, and there is no pause after a failure."""
    monkeypatch.setattr(module, "SETTLING_SECONDS", 0.0)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    scenes: list[Scene] = []

    def make(**arguments: Any) -> Scene:
        scenes.append(Scene(**arguments))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.close()


def encoded(key: StreamKey, start: int = 0) -> str:
    return encode_message(WakeMessage(log_pk(key, "incarnation"), start))


def test_no_receive_is_made_while_no_request_waits(make_scene: Callable[..., Scene]) -> None:
    """Nor is a queue created: most processes never need one."""
    scene = make_scene()
    scene.receiver.ensure_running()
    assert scene.hub.longest_wait_seconds(0.05) is None
    assert scene.queues.asked.empty()
    assert scene.queues.made == 0


def test_a_message_wakes_only_the_readers_of_its_stream(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    one, other = scene.reader(a_key()), scene.reader(a_key())
    scene.queues.next_receive()
    scene.queues.answers.put([encoded(one._key), "no message of ours", encoded(one._key, 7)])
    scene.queues.next_receive()
    until(lambda: one.wakes)
    assert other.wakes == 0


def test_an_empty_receive_wakes_every_reader(make_scene: Callable[..., Scene]) -> None:
    """So a lost wake message costs at most one receive."""
    scene = make_scene()
    readers = [scene.reader(a_key()) for _ in range(5)]
    scene.queues.next_receive()
    scene.queues.answers.put([])
    until(lambda: all(reader.wakes for reader in readers))


def test_a_queue_that_is_never_empty_still_wakes_every_reader_after_a_receives_time(
    make_scene: Callable[..., Scene],
) -> None:
    """Messages of other streams can keep every receive from being empty."""
    scene = make_scene(receive_seconds=0)
    busy, quiet = scene.reader(a_key()), scene.reader(a_key())
    scene.queues.next_receive()
    scene.queues.answers.put([encoded(busy._key)])
    until(lambda: quiet.wakes)


def test_a_receive_is_no_longer_than_a_request_waits(make_scene: Callable[..., Scene]) -> None:
    """In Lambda, a receive under way when the response is sent would be frozen with the process."""
    scene = make_scene()
    hasty = scene.reader(a_key(), seconds=3.5)
    _, seconds = scene.queues.next_receive()
    assert seconds <= 4
    scene.reader(a_key(), seconds=1000)
    hasty.leave()
    scene.queues.answers.put([])
    _, seconds = scene.queues.next_receive()
    assert seconds == 20, "the most that SQS allows"


def test_a_queue_that_is_gone_is_replaced(make_scene: Callable[..., Scene]) -> None:
    """Each waiting reader polls the log, after it has registered with the new queue."""
    scene = make_scene()
    readers = [scene.reader(a_key()) for _ in range(3)]
    assert scene.queues.next_receive()[0] == "queue 1"
    scene.queues.answers.put(QueueGone())
    assert scene.queues.next_receive()[0] == "queue 2"
    until(lambda: all(reader.wakes == 1 for reader in readers))
    assert scene.receiver.queue().url == "queue 2"


def warnings_of(scene: Scene, caplog: pytest.LogCaptureFixture) -> int:
    """How many this receiver's thread has logged; threads that other tests left may log, too."""
    assert scene.receiver._thread is not None
    return [record.thread for record in caplog.records].count(scene.receiver._thread.ident)


@pytest.mark.parametrize("failure", [QueueUnavailable("down"), RuntimeError("a bug")])
def test_after_any_failure_readers_are_woken_and_the_receiver_goes_on(
    make_scene: Callable[..., Scene], failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    scene = make_scene()
    reader = scene.reader(a_key())
    with caplog.at_level(logging.WARNING, "tidemark"):
        for expected in range(1, 4):
            scene.queues.next_receive()
            scene.queues.answers.put(failure)
            until(partial(reader.has_been_rung, expected))
        scene.queues.next_receive()
    assert warnings_of(scene, caplog) == 1, "said once, not for every try"
    assert scene.queues.made == 1


def test_readers_poll_the_log_until_there_is_a_queue(
    make_scene: Callable[..., Scene], caplog: pytest.LogCaptureFixture
) -> None:
    scene = make_scene()
    scene.queues.refuses = True
    with caplog.at_level(logging.WARNING, "tidemark"):
        reader = scene.reader(a_key())
        until(lambda: reader.wakes > 2)
        scene.queues.refuses = False
        assert scene.queues.next_receive()[0] == "queue 1"
    assert warnings_of(scene, caplog) == 1


def test_all_requests_share_one_thread_and_one_queue(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    for _ in range(20):
        scene.reader(a_key())
    thread = scene.receiver._thread
    for _ in range(100):
        scene.receiver.ensure_running()
    assert scene.receiver._thread is thread
    assert scene.queues.made == 1
    scene.queues.next_receive()
    assert scene.queues.asked.empty()


def test_a_receive_that_a_freeze_cut_off_is_given_up(make_scene: Callable[..., Scene]) -> None:
    """Its response arrived while the process was frozen. The next request gets a new thread. If the old
    receive returns after all, its message is used, and its thread ends."""
    scene = make_scene()
    reader = scene.reader(a_key())
    frozen = scene.receiver._thread
    _, seconds = scene.queues.next_receive()
    scene.clock.advance(seconds * 1000)
    scene.receiver.ensure_running()
    assert scene.receiver._thread is frozen, "it may still be on its way"
    scene.clock.advance(10_000)
    scene.receiver.ensure_running()
    assert scene.receiver._thread is not frozen
    scene.queues.next_receive()
    # Both receive now; whichever is answered first, the reader hears.
    scene.queues.answers.put([encoded(reader._key)])
    until(lambda: reader.wakes)

    def has_ended() -> bool:
        """The thread in its place receives too, and may take any number of the answers."""
        scene.queues.answers.put([encoded(reader._key)])
        assert frozen is not None
        return not frozen.is_alive()

    until(has_ended)


def test_a_thread_that_died_is_replaced(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    dead = threading.Thread(target=lambda: None)
    dead.start()
    dead.join()
    scene.receiver._thread = dead
    scene.reader(a_key())
    scene.queues.next_receive()


def test_closing_removes_the_queue(make_scene: Callable[..., Scene]) -> None:
    """The receive that this ends creates no new one."""
    scene = make_scene()
    scene.reader(a_key())
    scene.queues.next_receive()
    thread = scene.receiver._thread
    scene.receiver.close()
    assert scene.queues.deleted == ["queue 1"]
    assert thread is not None
    thread.join(PATIENCE_SECONDS)
    scene.receiver.ensure_running()
    assert scene.queues.made == 1
    with pytest.raises(QueueUnavailable):
        scene.receiver.queue()


def test_a_new_queue_is_not_called_in_its_first_second(
    make_scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQS may not know it yet, and answer that it does not exist."""
    slept: list[float] = []
    monkeypatch.setattr(module, "SETTLING_SECONDS", 1.0)
    monkeypatch.setattr("time.sleep", slept.append)
    scene = make_scene()
    scene.receiver.queue()
    scene.reader(a_key())
    scene.queues.next_receive()
    assert any(seconds > 0.5 for seconds in slept), slept

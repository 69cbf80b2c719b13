"""The receiver: one thread receives while a request waits. If in doubt, it wakes too many readers rather than
too few."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import Clock
from tests.waiting import PATIENCE_SECONDS, until
from tidemark.aws.sqs import QueueGone, Queues, QueueUnavailable
from tidemark.log.schema import log_pk
from tidemark.protocol.stream_key import StreamKey
from tidemark.wake import queue as module
from tidemark.wake.follow import Hub
from tidemark.wake.queue import Receiver, WakeMessage, encode_message

KEY = StreamKey("v1", "stream")
EVERYBODY = None


class Scripted(Queues):
    """The test decides what each receive returns."""

    def __init__(self) -> None:
        self.answers: queue.Queue[list[str] | Exception] = queue.Queue()
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


class Waiting(Hub):
    """A request waits for so many seconds, or none does. Notes who is woken: readers of a batch, or all."""

    def __init__(self) -> None:
        self.seconds: float | None = 1000.0
        self.woken: queue.Queue[tuple[StreamKey, str | None, int] | None] = queue.Queue()

    def longest_wait_seconds(self, at_most: float) -> float | None:
        time.sleep(0.001)  # Where nobody waits the real one blocks.
        return self.seconds

    def wake(self, key: StreamKey, incarnation: str | None = None, start: int = 0) -> None:
        self.woken.put((key, incarnation, start))

    def wake_all(self, incarnation: str | None = None) -> None:
        self.woken.put(EVERYBODY)


class Scene:
    """One process: requests that wait, its receiver, and a scripted queue."""

    def __init__(self, receive_seconds: int = 20, seconds: float | None = 1000) -> None:
        self.hub, self.queues, self.clock = Waiting(), Scripted(), Clock()
        self.hub.seconds = seconds
        self.receiver = Receiver(self.hub, self.queues, self.clock, receive_seconds)

    def start(self) -> threading.Thread:
        self.receiver.ensure_running()
        assert self.receiver._thread is not None
        return self.receiver._thread

    def next_receive(self) -> tuple[str, int]:
        """The queue, and for how long."""
        return self.queues.asked.get(timeout=PATIENCE_SECONDS)

    def answer(self, *starts: int) -> None:
        """A receive returns messages for batches of the stream that begin there."""
        pk = log_pk(KEY, "incarnation")
        self.queues.answers.put([encode_message(WakeMessage(pk, start)) for start in starts])

    def woken(self) -> tuple[StreamKey, str | None, int] | None:
        return self.hub.woken.get(timeout=PATIENCE_SECONDS)

    def close(self) -> None:
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


@pytest.fixture
def scene(make_scene: Callable[..., Scene]) -> Scene:
    return make_scene()


def test_no_receive_is_made_while_no_request_waits(scene: Scene) -> None:
    """Nor is a queue created: most processes never need one."""
    scene.hub.seconds = None
    scene.start()
    with pytest.raises(queue.Empty):
        scene.queues.asked.get(timeout=0.05)
    assert scene.queues.made == 0


def test_a_message_wakes_the_readers_of_its_batch_and_one_that_is_not_ours_nobody(scene: Scene) -> None:
    scene.start()
    scene.queues.answers.put(["no message of ours"])
    scene.answer(0, 7)
    assert [scene.woken(), scene.woken()] == [(KEY, "incarnation", 0), (KEY, "incarnation", 7)]


@pytest.mark.parametrize(("receive_seconds", "starts"), [(20, ()), (0, (0,))], ids=["empty", "never empty"])
def test_an_empty_receive_or_a_receives_time_without_one_wakes_every_reader(
    make_scene: Callable[..., Scene], receive_seconds: int, starts: tuple[int, ...]
) -> None:
    """So a lost wake message costs at most one receive. Messages of other streams can keep every receive from
    being empty."""
    scene = make_scene(receive_seconds=receive_seconds)
    scene.start()
    scene.answer(*starts)
    assert [scene.woken() for _ in (*starts, 0)] == [
        *((KEY, "incarnation", each) for each in starts),
        EVERYBODY,
    ]


@pytest.mark.parametrize(("waits_seconds", "receive_seconds"), [(3.5, 4), (1000, 20)])
def test_a_receive_is_no_longer_than_a_request_waits(
    make_scene: Callable[..., Scene], waits_seconds: float, receive_seconds: int
) -> None:
    """In Lambda, a receive under way when the response is sent would be frozen with the process. SQS allows
    20 seconds at most."""
    scene = make_scene(seconds=waits_seconds)
    scene.start()
    assert scene.next_receive() == ("queue 1", receive_seconds)


def test_a_queue_that_is_gone_is_replaced(scene: Scene) -> None:
    """Each waiting reader polls the log, after it has registered with the new queue."""
    scene.start()
    assert scene.next_receive()[0] == "queue 1"
    scene.queues.answers.put(QueueGone())
    assert scene.woken() is EVERYBODY
    assert scene.next_receive()[0] == "queue 2"
    assert scene.receiver.queue().url == "queue 2"


@pytest.mark.parametrize("failure", [QueueUnavailable("down"), RuntimeError("a bug"), "no queue"], ids=str)
def test_after_any_failure_readers_are_woken_and_the_receiver_goes_on(
    scene: Scene, failure: Exception | str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tidemark"):
        scene.queues.refuses = isinstance(failure, str)
        thread = scene.start()
        for _ in range(3):
            if isinstance(failure, Exception):
                scene.queues.answers.put(failure)
            assert scene.woken() is EVERYBODY
        scene.queues.refuses = False
        assert scene.next_receive()[0] == "queue 1"
    # Threads that other tests left may log, too.
    logged = [record.thread for record in caplog.records].count(thread.ident)
    assert logged == 1, "said once, not for every try"
    assert scene.queues.made == 1


def test_all_requests_share_one_thread_and_one_queue(scene: Scene) -> None:
    """A thread that died is replaced."""
    dead = threading.Thread(target=lambda: None)
    dead.start()
    dead.join()
    scene.receiver._thread = dead
    threads = {scene.start() for _ in range(100)}
    assert len(threads) == 1
    assert dead not in threads
    scene.next_receive()
    assert scene.queues.asked.empty()
    assert scene.queues.made == 1


def test_a_receive_that_a_freeze_cut_off_is_given_up(scene: Scene) -> None:
    """Its response arrived while the process was frozen. The next request gets a new thread. If the old
    receive returns after all, its message is used, and its thread ends."""
    frozen = scene.start()
    _, seconds = scene.next_receive()
    scene.clock.advance(seconds * 1000)
    assert scene.start() is frozen, "it may still be on its way"
    scene.clock.advance(10_000)
    assert scene.start() is not frozen
    scene.next_receive()
    # Both receive now; whichever is answered first, the reader hears.
    scene.answer(0)
    assert scene.woken() == (KEY, "incarnation", 0)

    def has_ended() -> bool:
        """The thread in its place receives too, and may take any number of the answers."""
        scene.answer(0)
        return not frozen.is_alive()

    until(has_ended)


def test_closing_removes_the_queue(scene: Scene) -> None:
    """The receive that this ends creates no new one."""
    thread = scene.start()
    scene.next_receive()
    scene.receiver.close()
    assert scene.queues.deleted == ["queue 1"]
    thread.join(PATIENCE_SECONDS)
    scene.receiver.ensure_running()
    assert not thread.is_alive()
    assert scene.receiver._thread is thread
    assert scene.queues.made == 1
    with pytest.raises(QueueUnavailable):
        scene.receiver.queue()


def test_a_new_queue_is_not_called_in_its_first_second(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQS may not know it yet, and answer that it does not exist."""
    slept: list[float] = []
    monkeypatch.setattr(module, "SETTLING_SECONDS", 100.0)
    monkeypatch.setattr("time.sleep", slept.append)
    scene.receiver.queue()
    scene.start()
    scene.next_receive()
    assert max(slept) > 0.001, slept

"""Appends that wait for their turn, in virtual time: real engines, and storage that falls silent."""

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.simulation.tasks import TasksOnLoop, VirtualLoop
from tests.support import TEXT, World, a_key, append_request
from tidemark.aws.retry import NoAnswer
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.protocol import errors
from tidemark.protocol.append import Outcome
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.group_commit import TURN_SECONDS, ClientLeft, GroupCommit

#: A gateway gives up at thirty.
BOUND_SECONDS = 25.0
LARGE = 70_000
EVERYTHING = frozenset({"PutItem", "GetItem", "Query", "TransactWriteItems", "PutObject", "GetObject"})
NOT_WRITTEN = (errors.StorageUnavailable, errors.StorageSilent)


@dataclass
class Storage:
    """Both services as one process sees them: a call takes `seconds`, or gets no answer at all."""

    seconds: dict[str, float] = field(default_factory=lambda: {"PutItem": 0.01, "PutObject": 0.01})
    #: Operations to which there is no answer.
    silent: Container[str] = ()
    #: Whether what is sent into the silence is carried out.
    lands: bool = False
    sent: list[str] = field(default_factory=list)

    def behind(self, send: Any, timeout: float, sleep: Callable[[float], None]) -> Any:
        def calling(operation: str, *more: Any) -> Any:
            self.sent.append(operation)
            if operation not in self.silent:
                sleep(self.seconds.get(operation, 0.01))
                return send(operation, *more)
            if self.lands:
                send(operation, *more)
            sleep(timeout)
            raise NoAnswer("injected")

        return calling


@dataclass
class Scene:
    world: World
    runner: asyncio.Runner
    storage: Storage
    group_commit: GroupCommit
    create: Callable[..., StreamKey]

    def run(self, scenario: Awaitable[Any]) -> Any:
        async def running() -> Any:
            return await scenario

        return self.runner.run(running())

    async def append(
        self, key: StreamKey, body: bytes, left: Any = None, **asked: Any
    ) -> Outcome | errors.ProtocolError:
        request = append_request(body, content_type=TEXT, **asked)
        try:
            return await self.group_commit.append(key, request, left)
        except errors.ProtocolError as refusal:
            return refusal

    async def append_at_once(self, key: StreamKey, body: bytes, **asked: Any) -> None:
        """It waits for nobody."""
        began = now()
        assert isinstance(await self.append(key, body, **asked), Outcome)
        assert now() - began < 1

    def read(self, key: StreamKey) -> bytes:
        return self.world.process().read_all(key)


@pytest.fixture
def scene(world: World) -> Iterator[Scene]:
    process, storage, tasks = world.process(), Storage(), TasksOnLoop()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        now = runner.get_loop().time
        for client, timeout in ((process.dynamodb, 5.0), (process.objects, 6.0)):
            client.send = storage.behind(client.send, timeout, tasks.sleep)
            client.sleep, client.now = tasks.sleep, now
        table = DynamoDBTable(process.dynamodb, world.table_name)
        stores = replace(process.stores, table=table, concurrency=tasks)

        def create() -> StreamKey:
            key = a_key()
            world.process().create(key, content_type=TEXT)
            return key

        yield Scene(world, runner, storage, GroupCommit(stores, tasks.run, lambda _: None), create)


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("lands", [False, True], ids=["lost on the way", "carried out unheard"])
@pytest.mark.parametrize("streams", [1, 20])
def test_after_half_a_minute_without_replies_appends_go_on(scene: Scene, streams: int, lands: bool) -> None:
    """Every append is answered in time. What is acknowledged is in the log once, what "was not
    written" is not there, and a second after storage is back appends are accepted again."""
    keys = [scene.create() for _ in range(streams)]
    answers: dict[tuple[StreamKey, bytes], Outcome | errors.ProtocolError] = {}
    took: list[float] = []
    first_success = 0.0
    silence, back = 2.0, 32.0

    async def write(key: StreamKey, body: bytes) -> None:
        nonlocal first_success
        began = now()
        answers[key, body] = await scene.append(key, body)
        took.append(now() - began)
        if isinstance(answers[key, body], Outcome) and began >= back and not first_success:
            first_success = now()

    async def outage() -> None:
        await asyncio.sleep(silence)
        scene.storage.silent, scene.storage.lands = EVERYTHING, lands
        await asyncio.sleep(back - silence)
        scene.storage.silent = ()

    async def play() -> None:
        writing = [asyncio.create_task(outage())]
        for number in range(400):
            key = keys[number % streams]
            writing.append(asyncio.create_task(write(key, f"<{number}>".encode())))
            await asyncio.sleep(0.1)
        await asyncio.gather(*writing)

    scene.run(play())
    assert len(answers) == 400
    assert max(took) <= BOUND_SECONDS
    assert 0 < first_success <= back + 1
    logs = {key: scene.read(key) for key in keys}
    for (key, body), answer in answers.items():
        count = logs[key].count(body)
        if isinstance(answer, Outcome):
            assert count == 1, (body, answer)
        elif isinstance(answer, NOT_WRITTEN):
            assert count == 0, (body, answer)
        else:
            assert isinstance(answer, errors.OutcomeUnknown)
            assert count <= 1
    kinds = {type(answer) for answer in answers.values()}
    assert (
        kinds == {Outcome, errors.OutcomeUnknown, errors.StorageUnavailable, errors.StorageSilent}
        or streams > 1
    )
    assert kinds >= {Outcome, errors.OutcomeUnknown, errors.StorageSilent}
    assert len(scene.storage.sent) < 1500, "the silence is not asked by every append"


def test_appends_that_wait_share_the_next_write_and_one_that_is_refused_fails_alone(scene: Scene) -> None:
    """The group commit decides them in the order of their arrival."""
    key = scene.create()
    scene.storage.seconds["PutItem"] = 1.0
    asked: list[tuple[bytes, dict[str, Any], str]] = [
        (b"a", {"claim": ("p", 0, 0)}, "Outcome"),
        (b"A", {"claim": ("p", 0, 0)}, "Outcome"),
        (b"b", {"claim": ("p", 0, 5)}, "SequenceGap"),
        (b"c", {"seq": "2"}, "Outcome"),
        (b"d", {"seq": "1"}, "SequenceRegression"),
        *((b"%d" % number, {}, "Outcome") for number in range(100)),
        (b"e", {"close": True}, "Outcome"),
        (b"f", {}, "AppendAfterClose"),
    ]

    async def play() -> list[Outcome | errors.ProtocolError]:
        first = asyncio.create_task(scene.append(key, b"<"))
        await asyncio.sleep(0.1)
        answers = await asyncio.gather(*(scene.append(key, body, **more) for body, more, _ in asked))
        assert isinstance(await first, Outcome)
        return answers

    answers = scene.run(play())
    assert [type(answer).__name__ for answer in answers] == [name for *_, name in asked]
    assert scene.read(key) == b"<ac" + b"".join(b"%d" % number for number in range(100)) + b"e"
    assert scene.storage.sent.count("PutItem") <= 4


def test_appends_that_wait_behind_a_silent_write_fail_with_it(scene: Scene) -> None:
    """Not one group of ten seconds after another; and they are told that nothing was written."""
    key = scene.create()

    async def play() -> None:
        assert isinstance(await scene.append(key, b"first"), Outcome)
        scene.storage.silent = EVERYTHING
        sent = asyncio.create_task(scene.append(key, b"sent"))
        await asyncio.sleep(3)
        waiting = [asyncio.create_task(scene.append(key, b"waiting")) for _ in range(200)]
        assert isinstance(await sent, errors.OutcomeUnknown)
        silent_at = now()
        assert {type(answer) for answer in await asyncio.gather(*waiting)} == {errors.StorageUnavailable}
        assert now() == silent_at

    scene.run(play())
    assert scene.read(key) == b"first"


def test_an_append_that_is_not_sent_in_time_gets_503(scene: Scene) -> None:
    """Storage that answers, but slowly: whoever has not been sent in time leaves."""
    key = scene.create()
    scene.storage.seconds["PutItem"] = 30.0

    async def play() -> None:
        sent = asyncio.create_task(scene.append(key, b"sent"))
        await asyncio.sleep(1)
        began = now()
        assert isinstance(await scene.append(key, b"late"), errors.StorageUnavailable)
        assert now() - began == pytest.approx(TURN_SECONDS)
        assert isinstance(await sent, Outcome)

    scene.run(play())
    assert scene.read(key) == b"sent"


@pytest.mark.parametrize("how", ["hangs up", "cancelled"])
def test_an_append_is_cancelled_when_its_client_leaves_unless_it_was_sent(scene: Scene, how: str) -> None:
    key = scene.create()
    scene.storage.seconds["PutItem"] = 8.0

    async def play() -> None:
        left = asyncio.Event()
        first = asyncio.create_task(scene.append(key, b"sent,", left.wait))
        await asyncio.sleep(1)
        second = asyncio.create_task(scene.append(key, b"left,", left.wait))
        third = asyncio.create_task(scene.append(key, b"stays"))
        await asyncio.sleep(2)
        if how == "cancelled":
            first.cancel()
            second.cancel()
        left.set()
        answers = await asyncio.gather(first, second, third, return_exceptions=True)
        assert isinstance(answers[1], ClientLeft if how == "hangs up" else asyncio.CancelledError)
        assert isinstance(answers[2], Outcome)

    scene.run(play())
    assert scene.read(key) == b"sent,stays"


def test_small_appends_overtake_a_large_one_that_is_being_put_into_s3(scene: Scene) -> None:
    key = scene.create()
    scene.storage.seconds["PutObject"] = 6.0

    async def play() -> None:
        large = asyncio.create_task(scene.append(key, b"x" * LARGE))
        await asyncio.sleep(0.1)
        for _ in range(10):
            await scene.append_at_once(key, b"small")
        assert isinstance(await large, Outcome)

    scene.run(play())
    assert scene.read(key) == b"small" * 10 + b"x" * LARGE
    assert scene.storage.sent.count("PutObject") == 1, "it is put there once"


def test_appends_of_one_producer_keep_their_order(scene: Scene) -> None:
    """A large one, and those behind it: none of them is refused for a gap. Others pass."""
    key = scene.create()
    scene.storage.seconds["PutObject"] = 3.0

    async def play() -> None:
        sizes = [3, LARGE, 3, LARGE, 3]
        claimed = [
            asyncio.create_task(scene.append(key, bytes([65 + seq]) * size, claim=("p", 0, seq)))
            for seq, size in enumerate(sizes)
        ]
        began = now()
        await asyncio.sleep(0)
        await scene.append_at_once(key, b"o", claim=("other", 0, 0))
        assert {type(answer) for answer in await asyncio.gather(*claimed)} == {Outcome}
        assert now() - began < 4, "both large ones were put into S3 at once"

    scene.run(play())
    expected = b"AAAo" + b"B" * LARGE + b"CCC" + b"D" * LARGE + b"EEE"
    assert scene.read(key) == expected


@pytest.mark.parametrize("closing", [b"", b"end"])
def test_a_close_waits_for_the_large_append_before_it(scene: Scene, closing: bytes) -> None:
    key = scene.create()
    scene.storage.seconds["PutObject"] = 3.0

    async def play() -> None:
        large = asyncio.create_task(scene.append(key, b"x" * LARGE))
        await asyncio.sleep(0.1)
        closed = asyncio.create_task(scene.append(key, closing, close=True))
        await asyncio.sleep(0.1)
        late = asyncio.create_task(scene.append(key, b"late"))
        answers = await asyncio.gather(large, closed, late)
        assert [type(answer) for answer in answers] == [Outcome, Outcome, errors.AppendAfterClose]

    scene.run(play())
    assert scene.read(key) == b"x" * LARGE + closing


def test_a_silent_bucket_delays_only_the_large_append_and_its_producer(scene: Scene) -> None:
    """The large append fails and nothing of it is written. What its producer sent behind it is told
    of the gap; others do not notice."""
    key = scene.create()
    scene.storage.silent = {"PutObject"}

    async def play() -> None:
        began = now()
        large = asyncio.create_task(scene.append(key, b"x" * LARGE, claim=("p", 0, 0)))
        await asyncio.sleep(0.1)
        behind = asyncio.create_task(scene.append(key, b"y", claim=("p", 0, 1)))
        await scene.append_at_once(key, b"small")
        assert isinstance(await large, errors.StorageUnavailable)
        assert isinstance(await behind, errors.SequenceGap | errors.StorageUnavailable)
        assert now() - began <= BOUND_SECONDS

    scene.run(play())
    assert scene.read(key) == b"small"


@pytest.mark.parametrize("kind", ["duplicate", "closed"])
def test_the_body_of_an_append_that_is_refused_is_not_put_into_s3(scene: Scene, kind: str) -> None:
    key = scene.create()

    async def play() -> None:
        claim = ("p", 0, 0)
        assert isinstance(await scene.append(key, b"x" * LARGE, claim=claim, close=kind == "closed"), Outcome)
        scene.storage.sent.clear()
        await scene.append(key, b"x" * LARGE, claim=claim)
        assert "PutObject" not in scene.storage.sent

    scene.run(play())

"""Turns: who is answered when, and what a commit that fails leaves behind."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest

from tests.stack.dynamodb import DynamoDBProtocol
from tidemark.engine import database, sqlite_file
from tidemark.engine.database import Database, Slow
from tidemark.engine.sqlite_file import UnusableDatabase
from tidemark.engine.table import EmbeddedQueue, EmbeddedTable
from tidemark.protocol.errors import Damaged, OutcomeUnknown, StorageUnavailable

_T = TypeVar("_T")


class Scene:
    """A table on disk, whose commits can be held back and be made to fail."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path)
        self.table = EmbeddedTable(self.database)
        self.commits: list[str] = []
        #: The calls of a turn have been made, and it is committed once it may be.
        self.is_made = threading.Event()
        self.may_commit = threading.Event()
        self.may_commit.set()
        self.failure: Exception | None = None
        commit = self.database._try_commit

        def held() -> Exception | None:
            self.is_made.set()
            self.may_commit.wait()
            self.commits.append(threading.current_thread().name)
            return self.failure or commit()

        self.database._try_commit = held  # type: ignore[method-assign]

    def put(self, sk: str) -> Callable[[], None]:
        return lambda: self.table.put({"pk": {"S": "p"}, "sk": {"S": sk}})

    def sks(self) -> list[str]:
        return [item["sk"]["S"] for item in self.table.query("p")[0]]

    def run(self, scenario: Callable[[], Awaitable[_T]]) -> _T:
        async def serving() -> _T:
            with self.database.serving():
                return await scenario()

        return asyncio.run(serving())

    def begin(self, *calls: Callable[[], Any]) -> list[asyncio.Future[Any]]:
        return [asyncio.ensure_future(self.database.run(call)) for call in calls]

    async def answers(self, *calls: Callable[[], Any]) -> list[Any]:
        """Of calls that are made in one turn: what each returns or raises."""
        return await asyncio.gather(*self.begin(*calls), return_exceptions=True)

    async def holds(self, *calls: asyncio.Future[Any]) -> None:
        """None of them is answered, however often the loop turns."""
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert not any(call.done() for call in calls)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "tidemark.db")
    yield scene
    scene.database.close()


def test_calls_that_wait_share_a_commit_on_a_thread(scene: Scene) -> None:
    names = [str(number) for number in range(9)]
    scene.run(lambda: scene.answers(*map(scene.put, names)))
    assert scene.commits == ["tidemark-engine"]
    assert scene.sks() == names


def test_a_transaction_that_was_taken_back_is_carried_out_when_it_is_sent_again(scene: Scene) -> None:
    """Its token says that it was carried out, and it was not. Sent twice for one commit it is one."""
    protocol = DynamoDBProtocol(scene.table, lambda: 0)
    item = {"pk": {"S": "p"}, "sk": {"S": "0"}}
    add = {"Key": item, "UpdateExpression": "ADD n :n", "ExpressionAttributeValues": {":n": {"N": "1"}}}
    transaction = orjson.dumps({"TransactItems": [{"Update": add}], "ClientRequestToken": "once"})

    async def scenario() -> None:
        def send() -> Any:
            return protocol.send("TransactWriteItems", transaction)

        scene.failure = sqlite3.OperationalError("database or disk is full")
        with pytest.raises(OutcomeUnknown):
            await scene.database.run(send)
        scene.failure = None
        assert await scene.answers(send, send) == [(200, b"{}")] * 2

    scene.run(scenario)
    [found] = scene.table.query("p")[0]
    assert found["n"] == {"N": "1"}


def test_messages_are_done_on_many_threads_while_others_write(scene: Scene) -> None:
    """A thread that keeps a cursor of the connection resets its statement under the others."""
    queue = EmbeddedQueue(scene.database, "topic", lambda: 0)
    queue.send([str(number) for number in range(600)])

    async def scenario() -> None:
        with ThreadPoolExecutor(32) as pool:
            loop, messages = asyncio.get_running_loop(), queue.take(600, 60)
            scene.commits.clear()
            done = [loop.run_in_executor(pool, queue.done, [each]) for each in messages]
            await asyncio.gather(*done, *scene.begin(*(scene.put(str(number)) for number in range(200))))

    scene.run(scenario)
    assert queue.next_ms() is None
    assert set(scene.commits) == {"tidemark-engine"}, "threads hand their operations to the loop"
    with pytest.raises(AssertionError, match="returns no cursor"):
        scene.database.operate(lambda db: db.execute("SELECT 1"), writes=False)


def test_nobody_is_answered_before_what_was_seen_is_committed(scene: Scene) -> None:
    """A refusal, too, waits for what it rests on."""

    def refuse() -> None:
        scene.sks()
        raise KeyError

    async def scenario() -> None:
        scene.may_commit.clear()
        first = scene.begin(scene.put("0"), scene.sks, refuse)
        await scene.holds(*first)
        late = scene.begin(scene.put("1"))
        await scene.holds(*late)
        scene.may_commit.set()
        _, read, refused = await asyncio.gather(*first, return_exceptions=True)
        assert (read, type(refused)) == (["0"], KeyError)
        await asyncio.gather(*late)

    scene.run(scenario)
    assert len(scene.commits) == 2


def test_a_reading_alone_waits_for_no_commit(scene: Scene) -> None:
    assert scene.run(lambda: scene.database.run(scene.sks)) == []
    assert scene.commits == []


def test_a_commit_that_fails_takes_back_the_whole_turn_and_the_next_one_goes_on(scene: Scene) -> None:
    forgotten, done = [], []
    scene.database.taken_back.append(lambda: forgotten.append(True))

    def write_and_tell() -> None:
        scene.put("0")()
        scene.database.then(lambda: done.append(True))

    async def scenario() -> None:
        scene.failure = sqlite3.OperationalError("disk I/O error")
        answers = await scene.answers(write_and_tell, scene.put("1"), scene.sks)
        assert [type(answer) for answer in answers] == [OutcomeUnknown] * 3
        scene.failure = None
        assert await scene.database.run(scene.sks) == []
        await scene.database.run(scene.put("2"))

    scene.run(scenario)
    assert (forgotten, done, scene.sks()) == ([True], [], ["2"])


def _write_and_hide(scene: Scene) -> None:
    scene.put("lost")()
    with suppress(StorageUnavailable):
        scene.database.operate(_fail, writes=True)


def _see_and_hide(scene: Scene) -> None:
    """It rests on its neighbour's write, which the failure takes back."""
    assert scene.sks() == ["before", "neighbour"]
    with suppress(StorageUnavailable):
        scene.database.operate(_fail, writes=False)


def _hide_and_write(scene: Scene) -> None:
    _write_and_hide(scene)
    with suppress(StorageUnavailable):
        scene.put("in the next turn")()


def _refuse_for_what_is_lost(scene: Scene) -> None:
    _write_and_hide(scene)
    raise KeyError


def _fail_halfway(scene: Scene) -> None:
    """An operation of two writes, by another failure than SQLite's."""

    def write_one(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO items VALUES ('p', 'half', '{}', NULL)")
        raise Damaged

    with suppress(Damaged):
        scene.database.operate(write_one, writes=True)


def _fail(db: sqlite3.Connection) -> None:
    db.execute("SELECT * FROM pages_that_cannot_be_read")


@pytest.mark.parametrize(
    "call", [_write_and_hide, _see_and_hide, _hide_and_write, _refuse_for_what_is_lost, _fail_halfway]
)
def test_a_call_that_hides_a_failure_fails_with_its_turn(scene: Scene, call: Callable[[Scene], None]) -> None:
    """What it has written or seen is gone, so it may not be answered, nor write in the next turn."""
    done: list[bool] = []

    def hide() -> None:
        try:
            call(scene)
        finally:
            scene.database.then(lambda: done.append(True))

    async def scenario() -> None:
        await scene.database.run(scene.put("before"))
        answers = await scene.answers(scene.put("neighbour"), hide)
        assert [type(answer) for answer in answers] == [OutcomeUnknown, StorageUnavailable]
        assert await scene.database.run(scene.sks) == ["before"]
        await scene.database.run(scene.put("later"))

    scene.run(scenario)
    assert (scene.sks(), done) == (["before", "later"], [])


def test_a_full_disk_refuses_what_has_no_room_and_leaves_nothing_half_done(scene: Scene) -> None:
    def limit(pages: int) -> None:
        pragma = f"PRAGMA max_page_count = {pages}"
        scene.database.operate(lambda db: db.execute(pragma).fetchone(), writes=False)

    def write_two() -> None:
        scene.put("small")()
        scene.table.put({"pk": {"S": "p"}, "sk": {"S": "large"}, "b": {"B": "eDsx" * 50_000}})

    async def scenario() -> None:
        await scene.database.run(scene.put("before"))
        limit(10)
        neighbour, refused = await scene.answers(scene.put("neighbour"), write_two)
        assert (type(neighbour), type(refused)) == (OutcomeUnknown, StorageUnavailable)
        assert await scene.database.run(scene.sks) == ["before"]
        limit(10_000)
        await scene.database.run(write_two)

    scene.run(scenario)
    assert scene.sks() == ["before", "large", "small"]


def test_what_is_slow_is_made_again_on_a_thread_unless_it_has_written(scene: Scene) -> None:
    made: list[bool] = []

    def call(*, writes: bool) -> None:
        made.append(threading.current_thread().name == "tidemark-engine")
        if writes:
            scene.put("0")()
        scene.database.check_fast()
        scene.put("1")()

    scene.run(lambda: scene.database.run(lambda: call(writes=False)))
    assert made == [True, False]
    scene.run(lambda: scene.database.run(lambda: call(writes=True)))
    assert made == [True, False, True]
    with pytest.raises(Slow):
        scene.run(lambda: scene.database.turn(scene.database.check_fast))


def test_a_request_that_is_cancelled_takes_no_other_along(scene: Scene) -> None:
    async def scenario() -> None:
        scene.may_commit.clear()
        one, other = scene.begin(scene.put("0"), scene.put("1"))
        await scene.holds(one, other)
        one.cancel()
        await asyncio.sleep(0)
        scene.may_commit.set()
        await other

    scene.run(scenario)
    assert scene.sks() == ["0", "1"]


def test_a_message_is_as_durable_as_the_write_that_it_is_part_of(scene: Scene) -> None:
    now = [1_000]
    messages = EmbeddedQueue(scene.database, "topic", lambda: now[0])

    async def scenario() -> None:
        scene.failure = sqlite3.OperationalError("disk I/O error")
        with pytest.raises(OutcomeUnknown):
            await scene.database.run(lambda: messages.send(["lost with its write"]))
        scene.failure = None
        await scene.database.run(lambda: messages.send(["one", "two"]))
        await scene.database.run(lambda: messages.send(["later"], delay_seconds=5))

    scene.run(scenario)
    assert messages.news.is_set()
    taken = messages.take(10, hidden_seconds=2)
    assert [each.body for each in taken] == ["one", "two"]
    messages.done(taken[:1])
    assert messages.take(10, hidden_seconds=2) == []
    now[0] += 2_000
    assert [each.body for each in messages.take(10, hidden_seconds=9)] == ["two"]  # It was not done.
    now[0] += 3_000
    assert [each.body for each in messages.take(10, hidden_seconds=9)] == ["later"]


MEGABYTE = 1024 * 1024


def put_megabytes(scene: Scene, count: int) -> Iterator[int]:
    """The length of the write-ahead log after each commit of one."""
    log = Path(f"{scene.database.path}-wal")
    for number in range(count):
        item = {"pk": {"S": "p"}, "sk": {"S": f"{number:04}"}, "b": {"B": "x" * MEGABYTE}}
        scene.run(partial(scene.database.run, partial(scene.table.put, item)))
        yield log.stat().st_size


def test_the_write_ahead_log_is_bounded_unless_a_reader_holds_it(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_COMMITS_BETWEEN", 1)
    monkeypatch.setattr(sqlite_file, "LONG_LOG_BYTES", 33 * MEGABYTE)
    assert max(put_megabytes(scene, 24)) < 20 * MEGABYTE
    assert caplog.messages == []
    with closing(sqlite3.connect(scene.database.path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM items").fetchall()
        assert max(put_megabytes(scene, 36)) > 33 * MEGABYTE
        [said] = caplog.messages
        assert "another process, such as a backup, reads the database" in said
    assert list(put_megabytes(scene, 2))[-1] <= 32 * MEGABYTE


@pytest.mark.parametrize("lost_bytes", [0, 1, 8000])
def test_a_lengthened_log_has_its_commits_after_a_power_cut(
    scene: Scene, tmp_path: Path, lost_bytes: int
) -> None:
    """But for a last one whose end is not on disk."""
    path = Path(scene.database.path)
    log, cut = Path(f"{path}-wal"), tmp_path / "cut"
    list(put_megabytes(scene, 1))
    scene.database.lengthen_log()
    length = log.stat().st_size
    assert length > 16 * MEGABYTE
    scene.run(partial(scene.database.run, scene.put("next")))
    assert log.stat().st_size == length
    stored = bytearray(log.read_bytes())
    end = len(stored.rstrip(b"\0"))
    stored[end - lost_bytes : end] = bytes(lost_bytes)
    cut.mkdir()
    (cut / log.name).write_bytes(stored)
    (cut / path.name).write_bytes(path.read_bytes())
    assert Scene(cut / path.name).sks() == ["0000"] + ["next"] * (not lost_bytes)


def test_pages_that_become_free_go_back_to_the_disk(tmp_path: Path) -> None:
    """But for a part that the next writes use."""
    path = tmp_path / "tidemark.db"
    scene = Scene(path)
    list(put_megabytes(scene, 5))
    scene.table.delete_many([{"pk": {"S": "p"}, "sk": {"S": f"{number:04}"}} for number in range(1, 5)])
    while scene.database.give_back():
        pass
    assert [len(item["b"]["B"]) for item in scene.table.query("p")[0]] == [MEGABYTE]
    scene.database.close()
    assert path.stat().st_size < 2 * MEGABYTE


def test_a_file_that_cannot_be_used_is_refused_and_left_alone(tmp_path: Path) -> None:
    names = ("other", "later", "earlier", "damaged")
    other, later, earlier, damaged = (tmp_path / f"{name}.db" for name in names)
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE of_others (x)")
    for path, version in ((later, 99), (earlier, 1)):
        Database(path).close()
        with sqlite3.connect(path) as db:
            db.execute(f"PRAGMA user_version = {version}")
    damaged.write_bytes(b"no database" * 100)
    for path, reason in (
        (other, "another program"),
        (later, "a later version of Tidemark: its format is 99"),
        (earlier, "an earlier version of Tidemark: its format is 1"),
        (damaged, "not a database"),
    ):
        before = path.read_bytes()
        with pytest.raises(UnusableDatabase, match=reason):
            Database(path)
        assert path.read_bytes() == before

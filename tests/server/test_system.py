"""The embedded system: what a write makes necessary is done after it, also by the next process."""

import asyncio
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from tests.support import BYTES, append_request, create_request
from tests.waiting import eventually, on_a_loop
from tests.wake.support import Heard
from tidemark.aws.clock import CLOCK
from tidemark.janitor.sweep import sweep
from tidemark.log.pack_format import PackIndex
from tidemark.log.records import Pack
from tidemark.protocol.errors import OutcomeUnknown
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.protocol.tail import Tail
from tidemark.server.ports import locked
from tidemark.server.system import ChangeFollower, Deliveries, EmbeddedSystem, memory_bytes
from tidemark.service.append import append
from tidemark.service.create import create
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.stream_registry import REGISTRY, StreamRegistry
from tidemark.settings import Settings
from tidemark.subscriptions.deliveries import Deliverer
from tidemark.subscriptions.notices import Appended, Changed, Notice, encode_notice
from tidemark.subscriptions.records import PendingMark
from tidemark.subscriptions.state import DeliveryFailure
from tidemark.subscriptions.webhook import DeliveryFailed, Fairness, WebhookResponse

pytestmark = pytest.mark.slow

JSON = parse_content_type("application/json")
KEY = StreamKey(PLAIN_BUCKET, "a")


def a_system(folder: Path) -> EmbeddedSystem:
    return EmbeddedSystem(Settings(), folder, folder / "blobs")


def test_the_memory_is_that_of_the_container_if_it_has_a_limit(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    machine = memory_bytes(limit)
    for said, expected in (("max\n", machine), ("4096\n", 4096), (f"{machine + 1}\n", machine)):
        limit.write_text(said)
        assert memory_bytes(limit) == expected
    assert machine > 4096


def follow(system: EmbeddedSystem) -> None:
    follower = ChangeFollower(system.stores, system.changes, system.notices)
    while follower.work():
        pass


def told(system: EmbeddedSystem) -> bytes:
    return read(system.stores, REGISTRY, 0).data


def test_what_is_stored_is_its_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with locked(folder):
        system = a_system(folder)
    system.blobs.put("log/a/one", b"x")
    private = [folder, *folder.glob("tidemark.db*"), folder / "blobs", folder / "blobs/log/a/one"]
    assert len(private) >= 5
    assert [stat.filemode(each.stat().st_mode)[4:] for each in private] == ["------"] * len(private)


def test_nobody_is_told_of_changes_where_nobody_has_asked(tmp_path: Path) -> None:
    system = a_system(tmp_path)
    create(system.stores, KEY, create_request(BYTES))
    assert system.changes.next_ms() is None


def test_a_change_is_on_disk_with_what_was_changed_and_told_by_the_next_process(tmp_path: Path) -> None:
    """The process ends right behind a commit."""
    running, killed = tmp_path / "running", tmp_path / "killed"
    running.mkdir()
    system = a_system(running)
    create(system.stores, REGISTRY, create_request(JSON))
    commit = system.database._try_commit

    def commit_and_end() -> Exception | None:
        failure = commit()
        shutil.copytree(running, killed)
        return failure

    system.database._try_commit = commit_and_end  # type: ignore[method-assign]
    create(system.stores, KEY, create_request(BYTES))
    system = a_system(killed)
    create(system.stores, StreamKey(PLAIN_BUCKET, "b"), create_request(BYTES))
    follow(system)
    assert [path in told(system) for path in (b'"path":"a"', b'"path":"b"')] == [True, True]


@pytest.mark.parametrize("part", ["changes", "deliveries"])
def test_what_was_not_handed_on_stays(tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> WebhookResponse:
        raise ZeroDivisionError

    system = a_system(tmp_path)
    create(system.stores, REGISTRY, create_request(JSON))
    monkeypatch.setattr(StreamRegistry, "append_changes", fail)
    if part == "changes":
        with pytest.raises(ZeroDivisionError):
            follow(system)
        assert system.changes.next_ms() is not None
    else:
        system.notices.send([encode_notice(Changed("s"))])
        deliveries = Deliveries(system.notices, cast(Deliverer, Calling(fail)))
        deliveries.work()
        deliveries._pool.shutdown()
        assert system.notices.next_ms() is not None


def test_a_damaged_stream_holds_up_no_other_ones_end(tmp_path: Path) -> None:
    system, now_ms = a_system(tmp_path), CLOCK.now_ms()
    for name in "abc":
        request = create_request(BYTES, expiry=Expiry(ttl_seconds=1))
        create(system.stores, StreamKey(PLAIN_BUCKET, name), request)
    damage = "UPDATE items SET crc = 0 WHERE sk = 'stream/b'"
    system.database.operate(lambda db: db.execute(damage).rowcount, writes=True)
    system.stores.clock_ms = lambda: now_ms + 60_000
    assert sweep(system.stores).expired == 2


@on_a_loop
async def test_each_commit_wakes_those_who_wait_whoever_writes(tmp_path: Path) -> None:
    system = a_system(tmp_path)
    create(system.stores, KEY, create_request(BYTES))
    with system.database.serving():
        follower = Heard(system.wake.hub, KEY)
        await asyncio.to_thread(append, system.stores, KEY, [append_request(b"x")])
        await eventually(lambda: follower.heard)


@dataclass(frozen=True)
class Calling:
    """It calls the webhook for each message, and nothing else."""

    call: Callable[[str], WebhookResponse]
    fairness: Fairness = field(default_factory=Fairness)

    def handle(self, message: Changed) -> None:
        self.fairness.meanwhile(lambda: self.call(message.subscription_id))


def test_a_thousand_webhooks_that_hang_hold_up_no_other(tmp_path: Path) -> None:
    """None of them has ended when the last one is handleed to."""
    system = a_system(tmp_path)
    over, good, hanging = threading.Event(), threading.Event(), list[str]()

    def call(name: str) -> WebhookResponse:
        if name == "good":
            good.set()
        else:
            hanging.append(name)
            over.wait(60)
        return WebhookResponse(200, b"")

    names = [*(f"hung-{number}" for number in range(1000)), "good"]
    system.notices.send([encode_notice(Changed(name)) for name in names])
    deliveries = Deliveries(system.notices, cast(Deliverer, Calling(call)))
    try:
        while deliveries.work():
            pass
        assert good.wait(60)
        assert len(hanging) == 1000
    finally:
        over.set()
        deliveries._pool.shutdown()


def test_a_new_delivery_comes_before_a_crowd_and_before_retries() -> None:
    """One computes at once here. The first of the crowd calls its webhook in vain, and goes on last."""
    fairness, order, over = Fairness(places=1), list[str](), threading.Event()

    def in_vain() -> WebhookResponse:
        raise DeliveryFailed("silent", DeliveryFailure.SILENT)

    def begin(name: str, message: Notice) -> None:
        fairness.begin(message, lambda: pool.submit(handle, name, message))

    def handle(name: str, message: Notice) -> None:
        order.append(name)
        if name == "crowd 0":
            for later in waiting:
                begin(*later)
            with suppress(DeliveryFailed):
                fairness.meanwhile(in_vain)
            order.append("after the call")
            over.set()
        fairness.end(message)

    def appended(path: str) -> Appended:
        return Appended("s", PendingMark("i", path, "j", 0))

    waiting: list[tuple[str, Notice]] = [
        ("retry", Changed("s")),
        ("crowd 1", appended("crowd")),
        ("crowd 2", appended("crowd")),
        ("quiet", appended("quiet")),
    ]
    with ThreadPoolExecutor() as pool:
        begin("crowd 0", appended("crowd"))
        assert over.wait(60)
    assert order == ["crowd 0", "quiet", "crowd 1", "crowd 2", "retry", "after the call"]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_remembered_before_its_turn_is_committed(tmp_path: Path, fails: bool) -> None:
    """Threads look there meanwhile. Of a turn that is taken back nothing is remembered, so the next append
    goes where the lost one was."""
    system = a_system(tmp_path)
    create(system.stores, KEY, create_request(BYTES))
    database, stores = system.database, system.stores
    commit, incarnation = database._try_commit, load_head(stores, KEY).record.incarnation
    pack = Pack(0, Tail(9), "", 0, "blob", PackIndex(()))

    def remembered() -> tuple[int, int, int]:
        head = stores.tails.get(KEY, stores.clock_ms())
        assert head is not None
        batches, packs = (stores.recent.chain_with_pack(log, 0, 100) for log in (incarnation, "packed"))
        return head.tail.offset, len(batches), len(packs)

    def append_and_look() -> tuple[int, int, int]:
        append(stores, KEY, [append_request(b"x")])
        stores.recent.keep_found("packed", pack)
        return remembered()

    def refuse() -> Exception | None:
        database._try_commit = commit  # type: ignore[method-assign]
        return sqlite3.OperationalError("disk I/O error")

    async def scenario() -> None:
        with database.serving():
            follower = Heard(system.wake.hub, KEY)
            if fails:
                database._try_commit = refuse  # type: ignore[method-assign]
                with pytest.raises(OutcomeUnknown):
                    await database.run(append_and_look)
                assert remembered() == (0, 0, 0)
                assert not follower.heard, "readers are woken for what is committed"
            assert await database.run(append_and_look) == (0, 0, 0)

    asyncio.run(scenario())
    assert remembered() == (1, 1, 1)
    assert read(stores, KEY, 0).data == b"x"

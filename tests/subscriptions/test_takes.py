"""Workers of a shared subscription on real storage: calls, races, lost replies, letters, other lives."""

from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import pytest

from tests.faults.test_lost_replies import lose_replies
from tests.subscriptions.scene import Scene
from tests.support import JSON as JSON_TYPE
from tests.support import Process, before
from tidemark.protocol.errors import InvalidSubscription, StreamNotFound, SubscriptionNotFound
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.delete import delete
from tidemark.service.retention import trim_below
from tidemark.subscriptions import storage, takes
from tidemark.subscriptions.configuration import SubscriptionConfiguration, SubscriptionKind, normalize
from tidemark.subscriptions.lifecycle import add_streams, subscribe, unsubscribe
from tidemark.subscriptions.shared import Settlement
from tidemark.subscriptions.takes import Take, Taken, take_now
from tidemark.subscriptions.workers import deliver_now

JOBS = StreamKey(PLAIN_BUCKET, "jobs")
LETTERS: dict[str, Any] = {"max_attempts": 2, "dead_letter_stream": "letters"}


def share(scene: Scene, *messages: object, offset: str | None = "-1", **asked: Any) -> None:
    scene.stream("jobs", *messages)
    kind = SubscriptionKind.SHARED
    wanted = SubscriptionConfiguration(kind, streams=("jobs",), offset=offset, lease_ttl_ms=10_000, **asked)
    subscribe(scene.writer.stores, "s", normalize(wanted))


def take(process: Process, most: int = 10, **settled: Any) -> Taken:
    return take_now(process.stores, "s", Take(Settlement(**settled), most))


def data(taken: Taken) -> list[Any]:
    return [orjson.loads(each.data) for each in taken.given]


def receipts(taken: Taken) -> list[str]:
    return [each.receipt for each in taken.given]


def test_a_take_that_settles_is_three_storage_calls_and_an_empty_one_writes_nothing(scene: Scene) -> None:
    share(scene, 1, 2, 3)
    worker = scene.worker
    first = take(worker, 1)
    worker.calls.taken()
    second = take(worker, 2, done=receipts(first))
    assert data(second) == [2, 3]
    assert worker.calls.taken() == {"BatchGetItem": 1, "Query": 1, "PutItem": 1}
    take(worker, 0, done=receipts(second))
    assert worker.calls.taken() == {"BatchGetItem": 1, "PutItem": 1}
    assert not take(worker).given
    assert worker.calls.taken() == {"BatchGetItem": 1, "Query": 1}


def test_each_message_goes_to_one_worker_and_comes_again_after_its_lease(scene: Scene) -> None:
    share(scene, *range(5))
    held = take(scene.worker, 3)
    assert (data(held), data(take(scene.writer, 9))) == ([0, 1, 2], [3, 4])
    scene.clock.advance(10_000)
    again = take(scene.writer, 1)
    assert (data(again), again.given[0].message.deliveries) == ([0], 2)
    late = take(scene.worker, 0, done=receipts(held))
    assert late.late == receipts(held)[:1]
    assert [each.end for each in late.window.messages if not each.done] == [2, 8, 10]


def test_a_process_remembers_few_streams(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takes, "_MOST_REMEMBERED", 1)
    share(scene, 1)
    scene.worker.stores.shared_streams["ended"] = JOBS
    assert data(take(scene.worker)) == [1]
    assert [*scene.worker.stores.shared_streams] == ["s"]


def test_a_message_of_a_batch_is_one_message(scene: Scene) -> None:
    """Also when a page begins within the batch, in a process that has not read it."""
    share(scene)
    scene.writer.append(JOBS, b'["a","b","c"]', content_type=JSON_TYPE)
    assert data(take(scene.worker, 1)) == ["a"]
    assert data(take(scene.world.process(), 1)) == ["b"]


@pytest.mark.parametrize("loses", ["take", "reply"])
def test_a_race_or_a_lost_reply_gives_no_message_twice(scene: Scene, loses: str) -> None:
    share(scene, 1, 2)
    other = list[Taken]()

    def overtake(operation: str) -> None:
        if operation == "PutItem" and not other:
            other.append(take(scene.writer, 1))

    if loses == "take":
        before(scene.worker.dynamodb, overtake)
    else:
        lose_replies(scene.worker)
    taken = take(scene.worker, 1)
    assert data(taken) == ([2] if loses == "take" else [1])
    assert not take(scene.worker, 0, done=receipts(taken)).late


def test_a_key_has_one_message_under_way_in_order(scene: Scene) -> None:
    rows = [{"k": "a", "n": 1}, {"k": "a", "n": 2}, {"k": "b", "n": 3}, {"n": 4}, {"n": 5}]
    share(scene, *rows, key="/k")
    first = take(scene.worker)
    assert [each["n"] for each in data(first)] == [1, 3, 4, 5]
    assert not take(scene.writer).given
    assert [each["n"] for each in data(take(scene.writer, done=receipts(first)[:1]))] == [2]


def test_a_message_goes_to_the_dead_letters_once(scene: Scene) -> None:
    """Rejected, or given too often; with its data. The letter of a take whose commit is lost is not written
    again, and a message stays while its letter cannot be written."""
    share(scene, {"n": 1}, {"n": 2}, **LETTERS)
    first = take(scene.worker)
    again = take(scene.worker, reject=receipts(first)[:1])
    assert data(again) == [{"n": 1}]  # There is no stream for letters.
    scene.stream("letters")

    other = scene.world.process()
    send: Any = other.dynamodb.send

    def dying(operation: str, body: bytes) -> Any:
        if b'{"S":"share/' in body and operation == "PutItem":
            raise ConnectionAbortedError
        return send(operation, body)

    other.dynamodb.send = dying
    with pytest.raises(ConnectionAbortedError):
        take(other, 0, reject=receipts(again))
    take(scene.worker, 0, reject=receipts(again))
    scene.clock.advance(10_000)
    assert data(take(scene.worker)) == [{"n": 2}]
    scene.clock.advance(10_000)
    assert not take(scene.worker).given
    letters = scene.events("letters")
    kept = [(each["data"], each["attempts"], each["hops"], each["stream"]) for each in letters]
    assert kept == [({"n": 1}, 2, 1, "jobs"), ({"n": 2}, 2, 1, "jobs")]


def test_a_stream_of_another_life_begins_a_new_window(scene: Scene) -> None:
    """A receipt of the earlier one changes nothing, even if its message has the same place."""
    share(scene, 1, 2)
    old = take(scene.worker)
    delete(scene.writer.stores, JOBS)
    with pytest.raises(StreamNotFound):
        take(scene.worker)
    scene.stream("jobs", 7)
    new = take(scene.worker, done=receipts(old))
    assert (data(new), new.late) == ([7], receipts(old))


def test_what_retention_has_removed_is_skipped(scene: Scene) -> None:
    share(scene, 1, 2, 3)
    held = take(scene.worker, 1)
    trim_below(scene.writer.stores, JOBS, 4)
    later = take(scene.worker, done=receipts(held))
    assert (data(later), later.late) == ([3], [])


def test_a_closed_stream_is_worked_off_when_all_is_done(scene: Scene) -> None:
    share(scene, 1)
    scene.writer.append(JOBS, b"2", content_type=JSON_TYPE, close=True)
    taken = take(scene.worker)
    assert not taken.closed
    assert not take(scene.writer).closed
    assert take(scene.worker, done=receipts(taken)).closed


def test_the_end_of_a_subscription_removes_its_state(scene: Scene) -> None:
    share(scene, 1)
    taken = take(scene.worker)
    unsubscribe(scene.writer.stores, "s")
    scene.changed()
    scene.work_off()
    with pytest.raises(SubscriptionNotFound):
        take(scene.worker, done=receipts(taken))
    assert storage.load_shared(scene.writer.stores.table, "s")[1] is None


@pytest.mark.parametrize("offset", [None, "0000000000000002"])
def test_it_begins_at_the_tail_or_where_it_was_asked_to(scene: Scene, offset: str | None) -> None:
    share(scene, 1, 2, offset=offset)
    scene.append("jobs", 3)
    assert data(take(scene.worker)) == ([3] if offset is None else [2, 3])


def test_an_append_to_a_shared_stream_notifies_nobody(scene: Scene) -> None:
    share(scene)
    scene.tell(scene.append("jobs"))
    assert not scene.queue.messages


@pytest.mark.parametrize("call", [deliver_now, partial(add_streams, paths=["a"])])
def test_it_has_one_stream_and_no_wakes(scene: Scene, call: Callable[..., object]) -> None:
    share(scene)
    with pytest.raises(InvalidSubscription, match="its workers take"):
        call(scene.writer.stores, "s")

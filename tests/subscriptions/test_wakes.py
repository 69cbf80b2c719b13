"""What workers see of subscriptions (§6, §7), one storage call and one message after the other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.subscriptions.scene import POOL, Receiver, Scene
from tidemark.delivery import attend
from tidemark.delivery.attend import SLOTS_OF_A_HOST, SLOW_SLOTS
from tidemark.delivery.webhook import DeliveryFailed, WebhookResponse
from tidemark.log.subscriptions import (
    free_slow_slot,
    load_links,
    load_marks,
    load_roster,
    take_slow_slot,
)
from tidemark.protocol.errors import (
    AlreadyClaimed,
    InvalidAck,
    InvalidSubscription,
    NoPendingWork,
    SubscriptionExists,
    SubscriptionNotFound,
    WakeFenced,
    WakeTokenInvalid,
)
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.protocol.wake_state import DeliveryFailure, WakePhase, phase, wakes_at
from tidemark.protocol.webhook_url import WebhookUrl
from tidemark.service.delete import delete
from tidemark.service.subscriptions import configure
from tidemark.service.subscriptions.configure import require_subscription
from tidemark.service.subscriptions.wakes import wake_now
from tidemark.wake.attention import decode_attention

DONE = WebhookResponse(200, b'{"done": true}')


def links(scene: Scene, name: str = "s") -> dict[str, tuple[bool, int]]:
    record = require_subscription(scene.worker.stores, name)
    return {
        link.path: (link.explicit, link.acked)
        for link in load_links(scene.worker.stores.table, record.incarnation)
    }


def announced(scene: Scene, *paths: str) -> None:
    """A subscription, an append to each of the streams, and the wake event that says so."""
    for path in paths:
        scene.stream(path)
    scene.stream(POOL)
    scene.subscribe()
    scene.tell(*map(scene.append, paths))
    scene.work_off()


def check_announced_again(scene: Scene) -> None:
    scene.changed()
    scene.work_off()
    assert [event["generation"] for event in scene.events()] == [1, 2]


def test_an_append_is_one_call_whoever_is_subscribed(scene: Scene) -> None:
    """The subscription is found by the table's stream: the writer does nothing for it."""
    scene.stream("events/a", 1)
    scene.stream(POOL)
    for number in range(3):
        scene.subscribe(f"s{number}", streams=["events/a"])
    writer = scene.writer
    writer.append(StreamKey(PLAIN_BUCKET, "events/a"), b"2", content_type=scene_json())
    writer.calls.taken()
    writer.append(StreamKey(PLAIN_BUCKET, "events/a"), b"3", content_type=scene_json())
    assert writer.calls.taken() == {"PutItem": 1}


def scene_json() -> object:
    from tests.support import JSON

    return JSON


def test_existing_streams_are_linked_at_their_tails(scene: Scene) -> None:
    scene.stream("events/a", 1, 2)
    scene.stream("other/a", 1)
    scene.subscribe(streams=["other/b"])
    assert links(scene) == {"events/a": (False, 4), "other/b": (True, 0)}
    with pytest.raises(NoPendingWork):
        scene.claim()


def test_a_stream_that_appears_later_is_linked_before_its_first_append(scene: Scene) -> None:
    scene.stream(POOL)
    scene.subscribe()
    scene.stream("events/new")
    scene.tell(scene.append("events/new"))
    scene.work_off()
    [event] = scene.events()
    assert (event["subscription_id"], event["stream"], event["generation"]) == ("s", "events/new", 1)
    claimed = scene.claim()
    assert [(each.link.path, each.acked, each.tail) for each in claimed.streams] == [("events/new", 0, 2)]


def test_a_claim_right_after_an_append_finds_the_work_by_itself(scene: Scene) -> None:
    """No record has come yet. The generation that it opens has no event, and the record brings none."""
    scene.stream(POOL)
    scene.stream("events/a")
    scene.subscribe()
    message = scene.append("events/a")
    claimed = scene.claim()
    assert [each.link.path for each in claimed.streams] == ["events/a"]
    scene.tell(message)
    scene.work_off()
    assert (claimed.record.wake.generation, scene.events()) == (1, [])


def test_a_claim_lists_what_the_trigger_has_not_come_by_yet(scene: Scene) -> None:
    """Beside what it has: one call asks a hundred streams for what lies behind their acks."""
    for number in range(6):
        scene.stream(f"events/{number}", 1)
    announced(scene, "events/told")
    for number in range(0, 6, 2):
        scene.append(f"events/{number}")
    scene.worker.calls.taken()
    listed = [each.link.path for each in scene.claim().streams]
    assert listed == ["events/0", "events/2", "events/4", "events/told"]
    assert scene.worker.calls.taken()["BatchGetItem"] == 1


@pytest.mark.parametrize("by_webhook", [False, True])
def test_done_says_that_a_wake_follows_before_the_trigger_has_come_by(scene: Scene, by_webhook: bool) -> None:
    """Another stream has an append that was acknowledged just before (§7)."""
    scene.stream("events/b", 1)
    scene.stream("events/a")
    scene.stream(POOL)
    scene.subscribe(webhook=by_webhook)
    scene.tell(scene.append("events/a"))
    scene.work_off()
    claimed = None if by_webhook else scene.claim()
    late = scene.append("events/b")

    def done() -> bool:
        return scene.callback(scene.receiver.bodies[-1]) if claimed is None else scene.ack(claimed)

    assert done() is True
    assert require_subscription(scene.worker.stores, "s").wake.generation == 2
    scene.tell(late)
    scene.changed()
    scene.work_off()
    assert require_subscription(scene.worker.stores, "s").wake.generation == 2, "one wake for one append"


def test_a_release_says_that_a_wake_follows_before_the_trigger_has_come_by(scene: Scene) -> None:
    scene.stream("events/b", 1)
    announced(scene, "events/a")
    claimed = scene.claim()
    assert scene.ack(claimed, done=False) is False
    scene.append("events/b")
    assert scene.release(claimed) is True


def test_the_same_configuration_is_confirmed_and_another_one_refused(scene: Scene) -> None:
    assert scene.subscribe().is_new
    assert not scene.subscribe().is_new
    with pytest.raises(SubscriptionExists):
        scene.subscribe(lease_ttl_ms=1_000)


def test_a_wake_is_leased_to_one_worker_until_its_lease_ends(scene: Scene) -> None:
    scene.stream("events/a")
    scene.subscribe()
    scene.append("events/a")
    claimed = scene.claim("w1")
    with pytest.raises(AlreadyClaimed) as refused:
        scene.claim("w2")
    assert refused.value.details["current_holder"] == "w1"
    scene.clock.advance(30_000)
    later = scene.claim("w2")
    assert later.record.wake.generation == claimed.record.wake.generation + 1
    with pytest.raises(WakeFenced):
        scene.ack(claimed)
    assert scene.ack(later) is False


def test_done_with_messages_left_wakes_again(scene: Scene) -> None:
    announced(scene, "events/a", "events/b")
    claimed = scene.claim()
    assert scene.ack(claimed, "events/a") is True
    check_announced_again(scene)
    assert [each.link.path for each in scene.claim().streams] == ["events/b"]


def test_an_append_while_a_worker_works_is_found_when_it_is_done(scene: Scene) -> None:
    """Even before its record comes."""
    announced(scene, "events/a")
    claimed = scene.claim()
    late = scene.append("events/a")
    assert scene.ack(claimed) is True
    scene.changed()
    scene.work_off()
    scene.tell(late, late)
    scene.work_off()
    assert [event["generation"] for event in scene.events()] == [1, 2]


def test_a_released_wake_can_be_claimed_by_another_worker(scene: Scene) -> None:
    announced(scene, "events/a")
    claimed = scene.claim("w1")
    assert scene.release(claimed) is True
    with pytest.raises(WakeFenced):
        scene.release(claimed)
    check_announced_again(scene)
    assert scene.claim("w2").record.wake.generation == 2


def test_an_ack_extends_the_lease(scene: Scene) -> None:
    scene.stream("events/a")
    scene.subscribe()
    scene.append("events/a")
    claimed = scene.claim("w1")
    for _ in range(4):
        scene.clock.advance(20_000)
        assert scene.ack(claimed, done=False) is False
        with pytest.raises(AlreadyClaimed):
            scene.claim("w2")


def test_one_ack_may_name_many_streams(scene: Scene) -> None:
    """More than one transaction takes."""
    for number in range(120):
        scene.stream(f"events/{number:03}")
    scene.subscribe()
    scene.tell(*[scene.append(f"events/{number:03}") for number in range(120)])
    scene.work_off()
    claimed = scene.claim()
    assert len(claimed.streams) == 120
    assert scene.ack(claimed) is False
    assert {acked for _, acked in links(scene).values()} == {2}


def test_the_cost_of_a_wake_does_not_grow_with_the_number_of_linked_streams(scene: Scene) -> None:
    """However many streams are linked."""
    for number in range(40):
        scene.stream(f"events/{number}", 1)
    scene.stream(POOL)
    scene.subscribe()
    scene.tell(scene.append("events/7"))
    scene.worker.calls.taken()
    scene.work_off()
    assert sum(scene.worker.calls.taken().values()) < 25


def test_a_deleted_stream_is_not_part_of_a_wake(scene: Scene) -> None:
    scene.stream("events/a")
    scene.stream("named")
    scene.subscribe(streams=["named"])
    scene.tell(scene.append("events/a"), scene.append("named"))
    for path in ("events/a", "named"):
        delete(scene.writer.stores, StreamKey(PLAIN_BUCKET, path))
    scene.work_off()
    assert links(scene) == {"named": (True, 0)}
    with pytest.raises(NoPendingWork):
        scene.claim()
    assert (
        load_marks(scene.worker.stores.table, require_subscription(scene.worker.stores, "s").incarnation)
        == []
    )


def test_a_stream_created_anew_is_followed_from_its_beginning(scene: Scene) -> None:
    scene.stream("events/a", 1, 2, 3)
    scene.subscribe()
    delete(scene.writer.stores, StreamKey(PLAIN_BUCKET, "events/a"))
    scene.stream("events/a")
    scene.tell(scene.append("events/a"))
    scene.work_off()
    assert [(each.acked, each.tail) for each in scene.claim().streams] == [(0, 2)]


def test_a_claim_that_finds_nothing_gives_the_next_append_its_event(scene: Scene) -> None:
    """Its wake event was read: without a new one nobody would claim again."""
    announced(scene, "events/a")
    delete(scene.writer.stores, StreamKey(PLAIN_BUCKET, "events/a"))
    with pytest.raises(NoPendingWork):
        scene.claim()
    scene.stream("events/b")
    scene.tell(scene.append("events/b"))
    scene.work_off()
    assert [event["stream"] for event in scene.events()] == ["events/a", "events/b"]


def test_a_wake_stream_that_is_missing_is_tried_again(scene: Scene) -> None:
    scene.stream("events/a")
    scene.subscribe()
    scene.tell(scene.append("events/a"))
    scene.work_off()
    assert require_subscription(scene.worker.stores, "s").wake.failed
    scene.stream(POOL)
    scene.clock.advance(1_000)
    scene.work_off()
    assert len(scene.events()) == 1
    assert not require_subscription(scene.worker.stores, "s").wake.failed


def test_a_subscription_never_wakes_itself_by_its_wake_stream(scene: Scene) -> None:
    scene.stream("events/a")
    scene.stream(POOL)
    scene.subscribe(pattern="**")
    scene.tell(scene.append("events/a"))
    scene.work_off()
    scene.tell(scene.append(POOL, {"by": "hand"}))
    scene.work_off()
    assert [each.link.path for each in scene.claim().streams] == ["events/a"]
    assert POOL not in links(scene)


@pytest.mark.parametrize("token", [None, "", "x.y.z", "another"])
def test_a_token_that_no_wake_has_is_refused(scene: Scene, token: str | None) -> None:
    scene.stream("events/a")
    for name in ("s", "t"):
        scene.subscribe(name)
    scene.append("events/a")
    claimed, other = scene.claim(), scene.claim(name="t")
    from dataclasses import replace

    with pytest.raises(WakeTokenInvalid):
        scene.ack(replace(claimed, token=other.token if token == "another" else token))


def test_a_token_ends_after_a_day(scene: Scene) -> None:
    scene.stream("events/a")
    scene.subscribe()
    scene.append("events/a")
    claimed = scene.claim()
    scene.clock.advance(25 * 60 * 60 * 1000)
    with pytest.raises(WakeTokenInvalid) as refused:
        scene.ack(claimed)
    assert refused.value.code == "TOKEN_EXPIRED"


def test_acks_outside_of_what_was_read_change_nothing(scene: Scene) -> None:
    from dataclasses import replace

    scene.stream("events/a")
    scene.subscribe()
    scene.append("events/a")
    claimed = scene.claim()
    [stream] = claimed.streams
    for wrong in (replace(stream, tail=99), replace(stream, link=replace(stream.link, path="events/zzz"))):
        with pytest.raises(InvalidAck):
            scene.ack(replace(claimed, streams=[stream, wrong]))
    assert links(scene) == {"events/a": (False, 0)}
    assert scene.ack(claimed) is False


def test_streams_are_added_and_removed_one_by_one(scene: Scene) -> None:
    stores = scene.worker.stores
    scene.stream("manual/b", 1)
    scene.stream("events/a", 1)
    scene.subscribe()
    configure.add_streams(stores, "s", ["manual/b", "events/a"])
    configure.add_streams(stores, "s", ["manual/b"])
    assert links(scene) == {"manual/b": (True, 2), "events/a": (True, 2)}
    scene.tell(scene.append("manual/b"))
    scene.work_off()
    assert [each.link.path for each in scene.claim().streams] == ["manual/b"]
    for path in ("manual/b", "events/a", "absent"):
        configure.remove_stream(stores, "s", path)
    assert links(scene) == {"events/a": (False, 2)}


def test_a_deleted_subscription_fences_its_worker_and_leaves_nothing(scene: Scene) -> None:
    from tests.support import items_left

    scene.stream("events/a")
    scene.subscribe(streams=["named"])
    scene.tell(scene.append("events/a"))
    scene.work_off()
    claimed = scene.claim()
    configure.unsubscribe(scene.worker.stores, "s")
    configure.unsubscribe(scene.worker.stores, "s")
    with pytest.raises(SubscriptionNotFound):
        scene.ack(claimed)
    scene.changed()
    scene.work_off()
    assert load_roster(scene.worker.stores.table) == []
    left = {item["pk"]["S"].partition("/")[0] for item in items_left(scene.worker)}
    assert left <= {"bucket", "log", "due"}


def test_a_subscription_created_anew_knows_nothing_of_the_old_one(scene: Scene) -> None:
    scene.stream("events/a")
    scene.subscribe()
    record = scene.append("events/a")
    claimed = scene.claim()
    configure.unsubscribe(scene.worker.stores, "s")
    scene.subscribe(lease_ttl_ms=5_000)
    with pytest.raises(WakeTokenInvalid):
        scene.ack(claimed)
    scene.tell(record)
    scene.changed()
    scene.work_off()
    assert len(load_roster(scene.worker.stores.table)) == 1
    with pytest.raises(NoPendingWork):
        scene.claim()


# --- webhooks ---


def test_a_webhook_that_answers_done_acks_what_it_was_sent(scene: Scene) -> None:
    scene.stream("events/a")
    scene.subscribe(webhook=True)
    scene.receiver.answer = lambda _: DONE
    scene.tell(scene.append("events/a"))
    scene.work_off()
    [body] = scene.receiver.bodies
    assert body["callback_url"] == "https://streams.example.com/v1/stream/__ds/subscriptions/s/callback"
    assert (body["subscription_id"], body["generation"]) == ("s", 1)
    assert body["streams"] == [
        {
            "path": "events/a",
            "link_type": "glob",
            "acked_offset": "0000000000000000",
            "tail_offset": "0000000000000002",
            "has_pending": True,
        }
    ]
    assert links(scene) == {"events/a": (False, 2)}
    assert require_subscription(scene.worker.stores, "s").wake.wake_id is None


def test_messages_that_arrive_while_the_webhook_works_make_another_wake(scene: Scene) -> None:
    """`{"done": true}` acks the snapshot, and not the tail of a moment later."""
    scene.stream("events/a")
    scene.subscribe(webhook=True)

    def answer(body: dict[str, object]) -> WebhookResponse:
        if body["generation"] == 1:
            scene.append("events/a", "more")
        return DONE

    scene.receiver.answer = answer
    scene.tell(scene.append("events/a"))
    scene.work_off()
    assert [body["generation"] for body in scene.receiver.bodies] == [1, 2]
    assert [body["streams"][0]["acked_offset"][-2:] for body in scene.receiver.bodies] == ["00", "02"]


def test_a_callback_acks_and_is_fenced_afterwards(scene: Scene) -> None:
    scene.stream("events/a")
    scene.subscribe(webhook=True)
    scene.tell(scene.append("events/a"))
    scene.work_off()
    [body] = scene.receiver.bodies
    assert scene.callback(body, done=False) is False
    assert scene.callback(body) is False
    with pytest.raises(WakeFenced):
        scene.callback(body)
    assert links(scene) == {"events/a": (False, 2)}


def test_a_lease_that_runs_out_wakes_again(scene: Scene) -> None:
    """By its timer, and under a new generation."""
    scene.stream("events/a")
    scene.subscribe(webhook=True)
    scene.tell(scene.append("events/a"))
    scene.work_off()
    scene.clock.advance(29_000)
    scene.work_off()
    assert len(scene.receiver.bodies) == 1
    scene.clock.advance(2_000)
    scene.work_off()
    first, second = scene.receiver.bodies
    assert (first["generation"], second["generation"]) == (1, 2)
    with pytest.raises(WakeFenced):
        scene.callback(first)
    assert scene.callback(second) is False


def test_a_webhook_that_fails_is_called_again_after_a_pause(scene: Scene) -> None:
    scene.stream("events/a")
    scene.subscribe(webhook=True, lease_ttl_ms=600_000)
    scene.receiver.answer = lambda _: WebhookResponse(500, b"")
    scene.tell(scene.append("events/a"))
    for pause_ms in (0, 1_000, 2_000, 4_000):
        scene.clock.advance(pause_ms)
        scene.work_off()
    assert [body["generation"] for body in scene.receiver.bodies] == [1, 1, 1, 1]
    assert require_subscription(scene.worker.stores, "s").wake.failed
    scene.receiver.answer = lambda _: DONE
    scene.clock.advance(8_000)
    scene.work_off()
    assert not require_subscription(scene.worker.stores, "s").wake.failed
    assert links(scene) == {"events/a": (False, 2)}


@pytest.mark.parametrize(
    ("failure", "calls", "after_ms"),
    [(DeliveryFailure.DROPPED, [1.0], 1_000), (DeliveryFailure.SILENT, [1.0, 10.0], 30_000)],
)
def test_a_webhook_that_may_have_got_the_wake_is_called_under_a_new_generation(
    scene: Scene, failure: DeliveryFailure, calls: list[float], after_ms: int
) -> None:
    """After the back-off where it has dropped the connection; after its lease where it may be at work, even
    though it had all its time."""
    scene.stream("events/a")
    scene.subscribe(webhook=True)

    def cut(_: object) -> WebhookResponse:
        raise DeliveryFailed("cut", failure)

    scene.receiver.answer = cut
    scene.tell(scene.append("events/a"))
    scene.work_off()
    scene.clock.advance(after_ms - 1)
    scene.work_off()
    assert scene.receiver.seconds == calls
    scene.clock.advance(1_000)
    scene.work_off()
    assert [body["generation"] for body in scene.receiver.bodies] == list(range(1, len(calls) + 2))


def test_a_webhook_that_needs_longer_than_a_first_call_is_called_with_all_its_time(scene: Scene) -> None:
    """What it answers to the first call, or calls back about it, is fenced. From then on it has all its time
    at once, until it is quick."""
    scene.stream("events/a")
    scene.subscribe(webhook=True)
    needs = [1_500, 1_500, 10, 10]

    def answer(_: object) -> WebhookResponse:
        patience_ms = int(scene.receiver.seconds[-1] * 1000)
        scene.clock.advance(min(patience_ms, needs[0]))
        if patience_ms < needs[0]:
            raise DeliveryFailed("silent", DeliveryFailure.SILENT)
        needs.pop(0)
        with pytest.raises(WakeFenced):
            scene.callback(scene.receiver.bodies[0], name="s")
        return DONE

    scene.receiver.answer = answer
    scene.tell(scene.append("events/a"))
    scene.work_off()
    assert scene.receiver.seconds == [1.0, 10.0]
    assert [body["generation"] for body in scene.receiver.bodies] == [1, 2]
    assert phase(require_subscription(scene.worker.stores, "s").wake) is WakePhase.IDLE
    for seconds in (10.0, 10.0, 1.0):
        scene.tell(scene.append("events/a"))
        scene.work_off()
        assert scene.receiver.seconds[-1] == seconds


@pytest.mark.parametrize("host", ["hung-{}.example.com", "good.example.com"])
def test_webhooks_that_hang_leave_room_for_the_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """Sixty never answer, and twenty messages are worked off at once: the slow ones have half of that, one
    host two. None has ended when the good one is delivered, also where all have one address."""
    monkeypatch.setattr(attend, "SLOW_SLOTS", 10)
    scene.stream("events/a")
    names = [f"hung-{number}" for number in range(60)]
    for number, name in enumerate(names):
        scene.subscribe(name, webhook=True, webhook_url=f"https://{host.format(number // 3)}/")
    scene.subscribe("good", webhook=True, webhook_url="https://good.example.com/good")
    over, good, hanging = threading.Event(), threading.Event(), list[str]()

    def call(url: WebhookUrl, _body: bytes, _headers: object, seconds: float) -> WebhookResponse:
        if url.target == "/good":
            good.set()
            return DONE
        if seconds > 1:
            hanging.append(url.host)
            over.wait(60)
        raise DeliveryFailed("silent", DeliveryFailure.SILENT)

    scene.attendant = replace(scene.attendant, call=call)
    scene.tell(scene.append("events/a"))
    due = sorted(map(decode_attention, scene.queue.due()), key=lambda each: each.subscription_id == "good")
    with ThreadPoolExecutor(20) as pool:
        try:
            for message in due:
                pool.submit(scene.attendant.attend, message)
            assert good.wait(50)
            assert 0 < len(hanging) <= 10
            assert max(map(hanging.count, hanging)) <= SLOTS_OF_A_HOST
        finally:
            over.set()
    states = [require_subscription(scene.worker.stores, name).wake for name in names]
    assert all(state.slow and wakes_at(state) is not None for state in states)


def test_a_wake_is_put_off_with_one_write_where_its_process_has_the_hosts_places(scene: Scene) -> None:
    """It does not try to take them."""
    scene.stream("events/a")
    scene.subscribe(webhook=True)

    def silent(_: object) -> WebhookResponse:
        raise DeliveryFailed("silent", DeliveryFailure.SILENT)

    scene.receiver.answer = silent
    scene.tell(scene.append("events/a"))
    scene.work_off()
    scene.clock.advance(100_000)
    scene.queue.messages.clear()
    calls_before = len(scene.receiver.bodies)
    writes = list[int]()
    for held in ((), range(SLOW_SLOTS)):
        scene.attendant.held.update(held)
        table = scene.worker.stores.table
        for slot in range(SLOW_SLOTS):
            take_slow_slot(table, [slot], "other", scene.clock(), scene.clock() + 600_000)
        scene.tell(scene.append("events/a"))
        [message] = map(decode_attention, scene.queue.due())
        scene.worker.calls.taken()
        scene.attendant.attend(message)
        calls = scene.worker.calls.taken()
        writes.append(calls.get("PutItem", 0) + calls.get("UpdateItem", 0))
        scene.queue.messages.clear()
        scene.clock.advance(100_000)
    assert len(scene.receiver.bodies) == calls_before
    assert writes[0] - writes[1] == SLOTS_OF_A_HOST, writes


def test_a_place_among_the_slow_is_free_again_when_its_holder_has_died(scene: Scene) -> None:
    table = scene.worker.stores.table
    assert [take_slow_slot(table, [3, 4], who, 0, 1_000) for who in "abc"] == [3, 4, None]
    free_slow_slot(table, 4, "b")
    assert take_slow_slot(table, [3, 4], "c", 999, 2_000) == 4
    assert take_slow_slot(table, [3, 4], "d", 1_000, 2_000) == 3
    free_slow_slot(table, 3, "a")
    assert take_slow_slot(table, [3], "e", 1_001, 2_000) is None, "who was thought dead frees nothing"


def test_a_callback_during_the_call_ends_the_wake(scene: Scene) -> None:
    """What the call itself comes to does not matter then."""
    scene.stream("events/a")
    scene.subscribe(webhook=True)

    def answer(body: dict[str, object]) -> WebhookResponse:
        scene.callback(body)
        return WebhookResponse(500, b"")

    scene.receiver.answer = answer
    scene.tell(scene.append("events/a"))
    scene.work_off()
    wake = require_subscription(scene.worker.stores, "s").wake
    assert (wake.wake_id, wake.failed, len(scene.receiver.bodies)) == (None, False, 1)


def test_a_webhook_subscription_cannot_be_claimed_nor_a_pool_called_back(scene: Scene) -> None:
    scene.subscribe(webhook=True)
    scene.subscribe("t")
    with pytest.raises(InvalidSubscription):
        scene.claim()
    body = {"callback_token": "x", "generation": 1, "wake_id": "w", "streams": []}
    with pytest.raises(InvalidSubscription):
        scene.callback(body, name="t")


def test_a_wake_costs_the_calls_that_the_docs_state(scene: Scene) -> None:
    """A stream that is linked, a webhook that answers done: every call from the record to the end.
    docs/costs.md has these numbers."""
    scene.stream("events/a")
    scene.subscribe(webhook=True)
    scene.receiver = Receiver(lambda _: DONE)
    scene.attendant = scene.make_attendant(scene.worker)
    scene.tell(scene.append("events/a"))
    scene.work_off()
    scene.clock.advance(60_000)
    scene.work_off()
    scene.worker.calls.taken()
    scene.tell(scene.append("events/a"))
    scene.work_off()
    calls = scene.worker.calls.taken()
    assert calls.pop("PutItem", 0) + calls.pop("UpdateItem", 0) <= 2
    assert calls.pop("TransactWriteItems") == 1
    assert calls.pop("DeleteItem") == 1
    assert sum(calls.values()) <= 24, calls


def delivered_ms(scene: Scene, name: str = "s") -> int | None:
    return require_subscription(scene.worker.stores, name).wake.delivered_ms


@pytest.mark.parametrize("answer", [DONE, WebhookResponse(202, b"")], ids=["done", "later"])
def test_a_subscription_tells_when_its_webhook_last_accepted_a_wake(
    scene: Scene, answer: WebhookResponse
) -> None:
    """Not when it was called in vain. It is a part of writes that are made anyway:
    `test_a_wake_costs_the_calls_that_the_docs_state` counts the calls."""
    scene.stream("events/a")
    scene.subscribe(webhook=True, lease_ttl_ms=600_000)
    scene.receiver.answer = lambda _: WebhookResponse(500, b"")
    scene.tell(scene.append("events/a"))
    scene.work_off()
    assert delivered_ms(scene) is None
    scene.receiver.answer = lambda _: answer
    scene.clock.advance(5_000)
    accepted_ms = scene.clock()
    scene.work_off()
    assert delivered_ms(scene) == accepted_ms
    scene.clock.advance(20_000)
    if answer is not DONE:
        scene.callback(scene.receiver.bodies[-1])
    scene.receiver.answer = lambda _: WebhookResponse(500, b"")
    scene.tell(scene.append("events/a"))
    scene.work_off()
    assert delivered_ms(scene) == accepted_ms


def test_a_subscription_tells_when_a_worker_last_claimed(scene: Scene) -> None:
    announced(scene, "events/a")
    written_ms = delivered_ms(scene)
    assert written_ms is not None, "the wake event was written"
    scene.clock.advance(1_000)
    claimed_ms = scene.clock()
    claimed = scene.claim()
    scene.clock.advance(1_000)
    scene.ack(claimed, done=True)
    assert delivered_ms(scene) == claimed_ms > written_ms


# --- waking at once -----------------------------------------------------------------


def test_a_webhook_that_failed_is_called_again_at_once_under_a_new_generation(scene: Scene) -> None:
    """The attempt before may still be at work, so it is fenced."""
    scene.stream("events/a")
    scene.subscribe(webhook=True)
    scene.receiver.answer = lambda _: WebhookResponse(500, b"")
    scene.tell(scene.append("events/a"))
    scene.work_off()
    [first] = scene.receiver.bodies
    stores = scene.worker.stores
    assert phase(require_subscription(stores, "s").wake) is WakePhase.RETRYING
    scene.receiver.answer = lambda _: DONE
    assert phase(wake_now(stores, "s").wake) is WakePhase.RETRYING
    scene.changed()
    scene.work_off()
    assert [body["generation"] for body in scene.receiver.bodies] == [1, 2]
    with pytest.raises(WakeFenced):
        scene.callback(first)
    assert phase(require_subscription(stores, "s").wake) is WakePhase.IDLE
    with pytest.raises(NoPendingWork):
        wake_now(stores, "s")


def test_a_wake_that_a_receiver_works_on_is_not_sent_again(scene: Scene) -> None:
    scene.stream("events/a")
    scene.subscribe(webhook=True)
    scene.tell(scene.append("events/a"))
    scene.work_off()
    stores = scene.worker.stores
    assert phase(require_subscription(stores, "s").wake) is WakePhase.LEASED
    with pytest.raises(AlreadyClaimed):
        wake_now(stores, "s")


def test_a_wake_that_nobody_claims_is_announced_once_more(scene: Scene) -> None:
    announced(scene, "events/a")
    assert phase(wake_now(scene.worker.stores, "s").wake) is WakePhase.DELIVERING
    assert wake_now(scene.worker.stores, "s").wake.generation == 2, "it is under way already"
    check_announced_again(scene)
    assert scene.claim().record.wake.generation == 2

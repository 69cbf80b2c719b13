"""What workers see of subscriptions (§6, §7), one storage call and one message after the other."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.infra.test_template import FUNCTIONS
from tests.subscriptions.scene import POOL, URL, Receiver, Scene
from tests.support import items_left
from tidemark.log.schema import log_pk
from tidemark.outbound.request import Url
from tidemark.protocol import errors
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.subscriptions import lifecycle, pending, webhook
from tidemark.subscriptions.deliveries import Deliverer
from tidemark.subscriptions.lifecycle import require_subscription
from tidemark.subscriptions.notices import Appended, decode_notice
from tidemark.subscriptions.pending import stream_key_of
from tidemark.subscriptions.state import DeliveryFailure, due_ms, phase
from tidemark.subscriptions.storage import load_marks, load_roster, remove_mark
from tidemark.subscriptions.webhook import (
    SLOTS_OF_A_HOST,
    SPARE_MS,
    WEBHOOK_MS,
    DeliveryFailed,
    Fairness,
    WebhookResponse,
)
from tidemark.subscriptions.workers import deliver_now
from tidemark.wake.queue import WakeMessage

DONE = WebhookResponse(200, b'{"done": true}')
WRONG = WebhookResponse(500, b"")


def fails(failure: DeliveryFailure) -> Callable[[Any], WebhookResponse]:
    def fail(_: object) -> WebhookResponse:
        raise DeliveryFailed("cut", failure)

    return fail


def delete_stream(scene: Scene, path: str) -> None:
    delete(scene.writer.stores, StreamKey(PLAIN_BUCKET, path))


def claimed_streams(scene: Scene) -> list[tuple[str, int, int]]:
    return [(each.link.path, each.acked, each.tail) for each in scene.claim().streams]


# --- which streams are followed ---


def test_existing_streams_are_linked_at_their_tails(scene: Scene) -> None:
    scene.stream("events/a", 1, 2)
    scene.stream("other/a", 1)
    scene.subscribe(streams=["other/b"])
    assert scene.links() == {"events/a": (False, 4), "other/b": (True, 0)}
    with pytest.raises(errors.NoPendingWork):
        scene.claim()


@pytest.mark.parametrize(("limit", "queries"), [(100, 0), (2, 1 + 2)])
def test_a_creation_counts_followers_by_a_query_and_a_few_more_where_there_are_many(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, limit: int, queries: int
) -> None:
    """Many: one for the pattern's streams, and one for each of the paths that are checked, here of `events/a`
    and of the pattern itself. Beside those are a query for the roster, and one for the streams to link."""
    monkeypatch.setattr(lifecycle, "MAX_OF_A_STREAM", limit)
    scene.begin(streams=("named",), pattern=None)
    scene.subscribe("t", pattern="other/*")
    scene.writer.calls.taken()
    assert scene.subscribe("u")
    calls = scene.writer.calls.taken()
    assert calls["Query"] == 2 + queries + 1, "the last is the tail of `events/a`"
    assert (calls["GetItem"], calls["PutItem"]) == (1 + 2, 4)


def test_a_stream_that_appears_later_is_linked_before_its_first_append(scene: Scene) -> None:
    scene.begin()
    scene.stream("events/new")
    scene.news("events/new")
    [event] = scene.events()
    assert (event["subscription_id"], event["stream"], event["generation"]) == ("s", "events/new", 1)
    assert claimed_streams(scene) == [("events/new", 0, 2)]


@pytest.mark.parametrize("is_told", [False, True])
def test_a_claim_lists_what_the_trigger_has_not_come_by_yet(scene: Scene, is_told: bool) -> None:
    """Beside what it has: one call asks a hundred streams for what lies behind their acks. A generation that
    the claim opens has no event, and the record brings none."""
    names = [f"events/{number}" for number in range(6)]
    scene.begin("events/told", *names)
    if is_told:
        scene.news("events/told")
    late = [scene.append(name) for name in names[::2]]
    scene.worker.calls.taken()
    claimed = scene.claim()
    assert scene.worker.calls.taken()["BatchGetItem"] == 1
    assert [each.link.path for each in claimed.streams] == names[::2] + ["events/told"] * is_told
    scene.tell(*late)
    scene.work_off()
    assert [event["generation"] for event in scene.events()] == [1] * is_told
    assert scene.delivery.generation == 1


def test_many_appends_to_a_stream_that_are_told_together_take_one_notice(scene: Scene) -> None:
    scene.begin("events/a", "events/b")
    scene.tell(*[scene.append(path) for path in ("events/a", "events/b") for _ in range(3)])
    notices = map(decode_notice, scene.queue.due())
    marks = [each.mark for each in notices if isinstance(each, Appended)]
    assert [(each.path, each.start) for each in marks] == [("events/a", 4), ("events/b", 4)]


def test_a_deleted_stream_is_not_part_of_a_delivery(scene: Scene) -> None:
    scene.begin("events/a", "named", streams=["named"])
    scene.tell(scene.append("events/a"), scene.append("named"))
    for path in ("events/a", "named"):
        delete_stream(scene, path)
    scene.work_off()
    assert scene.links() == {"named": (True, 0)}
    with pytest.raises(errors.NoPendingWork):
        scene.claim()
    record = require_subscription(scene.worker.stores, "s")
    assert not list(load_marks(scene.worker.stores.table, record.incarnation))


def test_a_stream_created_anew_is_followed_from_its_beginning(scene: Scene) -> None:
    scene.stream("events/a", 1, 2, 3)
    scene.subscribe()
    delete_stream(scene, "events/a")
    scene.stream("events/a")
    scene.news()
    assert claimed_streams(scene) == [("events/a", 0, 2)]


def test_a_late_record_of_a_stream_that_is_gone_takes_no_mark_from_the_next_of_its_name(scene: Scene) -> None:
    """Another process has seen the old stream's mark, and is about to remove it."""
    scene.begin("events/a")
    late = scene.append("events/a")
    scene.tell(late)
    scene.work_off()
    scene.claim()
    table, incarnation = scene.worker.stores.table, require_subscription(scene.worker.stores, "s").incarnation
    [seen] = load_marks(table, incarnation)
    delete_stream(scene, "events/a")
    scene.stream("events/a")
    scene.tell(scene.append("events/a"), late)
    scene.work_off()
    remove_mark(table, seen)
    assert len(list(load_marks(table, incarnation))) == 1


def test_a_claim_that_finds_nothing_gives_the_next_append_its_event(scene: Scene) -> None:
    """Its wake event was read: without a new one nobody would claim again."""
    scene.begin("events/a", "events/b")
    scene.news()
    delete_stream(scene, "events/a")
    with pytest.raises(errors.NoPendingWork):
        scene.claim()
    scene.news("events/b")
    assert [event["stream"] for event in scene.events()] == ["events/a", "events/b"]


def test_streams_are_added_and_removed_one_by_one(scene: Scene) -> None:
    stores = scene.worker.stores
    scene.stream("manual/b", 1)
    scene.stream("events/a", 1)
    scene.subscribe()
    lifecycle.add_streams(stores, "s", ["manual/b", "events/a"])
    lifecycle.add_streams(stores, "s", ["manual/b"])
    assert scene.links() == {"manual/b": (True, 2), "events/a": (True, 2)}
    scene.news("manual/b")
    assert claimed_streams(scene) == [("manual/b", 2, 4)]
    for path in ("manual/b", "events/a", "absent"):
        lifecycle.remove_stream(stores, "s", path)
    assert scene.links() == {"events/a": (False, 2)}


def test_a_new_stream_of_the_pattern_that_is_named_is_followed_from_its_beginning(scene: Scene) -> None:
    """The record of its first append has not come yet."""
    scene.begin(streams=["other/named"])
    scene.stream("events/new", 1)
    lifecycle.add_streams(scene.worker.stores, "s", ["events/new"])
    assert scene.left("events/new") == {"events/new": (0, 2)}
    assert claimed_streams(scene) == [("events/new", 0, 2)]


def test_a_subscription_never_delivers_to_itself_by_its_wake_stream(scene: Scene) -> None:
    scene.begin(pattern="**")
    scene.news()
    scene.tell(scene.append(POOL, {"by": "hand"}))
    scene.work_off()
    assert [path for path, _, _ in claimed_streams(scene)] == ["events/a"]
    assert POOL not in scene.links()


def test_a_wake_stream_that_is_missing_is_tried_again(scene: Scene) -> None:
    scene.stream("events/a")
    scene.subscribe()
    scene.news()
    assert scene.delivery.failed
    scene.stream(POOL)
    scene.clock.advance(1_000)
    scene.work_off()
    assert len(scene.events()) == 1
    assert not scene.delivery.failed


def dies_there(*_: object) -> None:
    raise NotImplementedError


def test_a_repeated_wake_event_renews_its_stream_by_calls_that_the_role_of_the_function_grants(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process died between the event and the state that says so."""
    pool = StreamKey(PLAIN_BUCKET, POOL)
    scene.writer.create(pool, content_type=parse_content_type("application/json"), expiry=Expiry(100))
    scene.stream("events/a")
    scene.subscribe()
    scene.tell(scene.append("events/a"))
    with monkeypatch.context() as dying, suppress(NotImplementedError):
        dying.setattr(Deliverer, "_settle", dies_there)
        scene.work_off()
    scene.clock.advance(50_000)
    scene.worker.calls.taken()
    scene.changed()
    scene.work_off()
    [policy] = FUNCTIONS["SubscriptionsFunction"]["Policies"]
    called = {f"dynamodb:{call}" for call in scene.worker.calls.taken()}
    assert "dynamodb:UpdateItem" in called
    assert called <= set(policy["Statement"][0]["Action"])
    assert [event["generation"] for event in scene.events()] == [1]
    assert phase(scene.delivery) == "announced"


# --- claiming and acking ---


def finish_one_of_two_streams(scene: Scene, claimed: Any) -> bool:
    return scene.ack(claimed, "events/a")


def finish_after_another_append(scene: Scene, claimed: Any) -> bool:
    """Its record has not come yet."""
    scene.append("events/a")
    return scene.ack(claimed)


def release(scene: Scene, claimed: Any) -> bool:
    return scene.release(claimed)


def release_after_an_append_elsewhere(scene: Scene, claimed: Any) -> bool:
    assert scene.ack(claimed, done=False) is False
    scene.append("events/c")
    return scene.release(claimed)


@pytest.mark.parametrize(
    "finish",
    [finish_one_of_two_streams, finish_after_another_append, release, release_after_an_append_elsewhere],
)
def test_a_worker_that_leaves_messages_is_told_so_and_the_pool_is_woken_again(
    scene: Scene, finish: Callable[[Scene, Any], bool]
) -> None:
    scene.begin("events/a", "events/b", "events/c")
    scene.news("events/a", "events/b")
    claimed = scene.claim("w1")
    assert finish(scene, claimed) is True
    with pytest.raises(errors.DeliveryFenced):
        scene.release(claimed)
    scene.changed()
    scene.work_off()
    assert [event["generation"] for event in scene.events()] == [1, 2]
    assert scene.claim("w2").record.delivery.generation == 2


@pytest.mark.parametrize("webhook", [False, True])
def test_done_says_that_a_delivery_follows_before_the_trigger_comes_by(scene: Scene, webhook: bool) -> None:
    """Another stream has an append that was acknowledged just before (§7)."""
    scene.begin("events/a", "events/b", webhook=webhook)
    scene.news()
    claimed = None if webhook else scene.claim()
    late = scene.append("events/b")
    done = scene.callback(scene.receiver.bodies[-1]) if webhook else scene.ack(claimed)
    assert (done, scene.delivery.generation) == (True, 2)
    scene.tell(late)
    scene.changed()
    scene.work_off()
    assert scene.delivery.generation == 2, "one delivery for one append"


def test_a_delivery_is_leased_to_one_worker_until_its_lease_ends(scene: Scene) -> None:
    """Each ack extends it."""
    scene.begin()
    scene.append("events/a")
    claimed = scene.claim("w1")
    for _ in range(4):
        scene.clock.advance(20_000)
        assert scene.ack(claimed, done=False) is False
        with pytest.raises(errors.AlreadyClaimed) as refused:
            scene.claim("w2")
        assert refused.value.details["current_holder"] == "w1"
    scene.append("events/a")
    scene.clock.advance(30_000)
    later = scene.claim("w2")
    assert later.record.delivery.generation == claimed.record.delivery.generation + 1
    with pytest.raises(errors.DeliveryFenced):
        scene.ack(claimed)
    assert scene.ack(later) is False


def test_one_ack_may_name_many_streams(scene: Scene) -> None:
    """More than one transaction takes."""
    names = [f"events/{number:03}" for number in range(120)]
    scene.begin(*names)
    scene.news(*names)
    claimed = scene.claim()
    assert len(claimed.streams) == 120
    assert scene.ack(claimed) is False
    assert {acked for _, acked in scene.links().values()} == {2}


@pytest.mark.parametrize(
    ("token", "after_ms", "code"),
    [
        *((token, 0, "TOKEN_INVALID") for token in (None, "", "x.y.z", "another")),
        ("its own", 25 * 60 * 60 * 1000, "TOKEN_EXPIRED"),
    ],
)
def test_a_token_that_no_delivery_has_or_that_is_a_day_old_is_refused(
    scene: Scene, token: str | None, after_ms: int, code: str
) -> None:
    scene.begin()
    scene.subscribe("t")
    scene.append("events/a")
    claimed, other = scene.claim(), scene.claim(name="t")
    scene.clock.advance(after_ms)
    sent = {"another": other.token, "its own": claimed.token}.get(token or "", token)
    with pytest.raises(errors.DeliveryTokenInvalid) as refused:
        scene.ack(replace(claimed, token=sent))
    assert refused.value.code == code


def test_acks_outside_of_what_was_read_change_nothing(scene: Scene) -> None:
    scene.begin()
    scene.append("events/a")
    claimed = scene.claim()
    [stream] = claimed.streams
    for wrong in (replace(stream, tail=99), replace(stream, link=replace(stream.link, path="events/zzz"))):
        with pytest.raises(errors.InvalidAck):
            scene.ack(replace(claimed, streams=[stream, wrong]))
    assert scene.links() == {"events/a": (False, 0)}
    assert scene.ack(claimed) is False


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("is_told", [False, True])
def test_an_ack_of_a_stream_that_was_created_anew_meanwhile_acks_nothing_of_the_new_one(
    scene: Scene, named: bool, is_told: bool
) -> None:
    """Its offset is one of the stream that is gone; the trigger may have seen the new one or not."""
    scene.stream(POOL)
    scene.subscribe(streams=["events/a"] if named else [])
    scene.stream("events/a")
    scene.news()
    claimed = scene.claim()
    delete_stream(scene, "events/a")
    scene.stream("events/a")
    records = [scene.append("events/a", "unseen") for _ in range(2)]
    if is_told:
        scene.tell(*records)
        scene.work_off()
    with pytest.raises(errors.InvalidAck):
        scene.ack(claimed)
    scene.release(claimed)
    scene.tell(*records)
    scene.work_off()
    [stream] = scene.claim().streams
    assert stream.acked == 0


def test_a_subscription_is_deleted_with_all_that_it_has_and_created_anew(scene: Scene) -> None:
    """Its worker is fenced, before and after: the new one knows nothing of the old one."""
    scene.begin(streams=["named"])
    record = scene.append("events/a")
    scene.tell(record)
    scene.work_off()
    claimed = scene.claim()
    for _ in range(2):
        lifecycle.unsubscribe(scene.worker.stores, "s")
    with pytest.raises(errors.SubscriptionNotFound):
        scene.ack(claimed)
    scene.changed()
    scene.work_off()
    assert load_roster(scene.worker.stores.table) == []
    left = {item["pk"]["S"].partition("/")[0] for item in items_left(scene.worker)}
    assert left <= {"bucket", "log", "due"}

    assert scene.subscribe(lease_ttl_ms=5_000)
    assert not scene.subscribe(lease_ttl_ms=5_000)
    with pytest.raises(errors.SubscriptionExists):
        scene.subscribe()
    with pytest.raises(errors.DeliveryTokenInvalid):
        scene.ack(claimed)
    scene.tell(record)
    scene.changed()
    scene.work_off()
    assert len(load_roster(scene.worker.stores.table)) == 1
    with pytest.raises(errors.NoPendingWork):
        scene.claim()


@pytest.mark.parametrize("again", [True, False])
def test_what_a_deleted_subscription_has_is_removed_though_nobody_hears(scene: Scene, again: bool) -> None:
    """The notice finds the next one of its id, or came to nothing for as long as the end mark was there."""
    scene.begin("events/a", "named", streams=["named"])
    lifecycle.unsubscribe(scene.worker.stores, "s")
    if again:
        scene.subscribe(pattern="other/*")
        scene.changed()
        scene.work_off()
    assert len(load_roster(scene.worker.stores.table)) == 1 + again
    assert pending.remind(scene.worker.stores, scene.queue.send) == 0
    assert len(load_roster(scene.worker.stores.table)) == again
    left = {item["pk"]["S"].partition("/")[0] for item in items_left(scene.worker)}
    assert not left & {"link", "follow"}


def test_a_webhook_subscription_cannot_be_claimed_nor_a_pool_called_back(scene: Scene) -> None:
    scene.subscribe(webhook=True)
    scene.subscribe("t")
    with pytest.raises(errors.InvalidSubscription):
        scene.claim()
    body = {"callback_token": "x", "generation": 1, "wake_id": "w", "streams": []}
    with pytest.raises(errors.InvalidSubscription):
        scene.callback(body, name="t")


# --- webhooks ---


def test_a_webhook_that_answers_done_acks_what_it_was_sent(scene: Scene) -> None:
    scene.begin(webhook=True)
    scene.receiver.answer = lambda _: DONE
    scene.news()
    [body] = scene.receiver.bodies
    assert body["callback_url"] == "https://streams.example.com/v1/stream/__ds/subscriptions/s/callback"
    assert (body["subscription_id"], body["generation"]) == ("s", 1)
    offsets = {"acked_offset": f"{0:016}", "tail_offset": f"{2:016}"}
    assert body["streams"] == [{"path": "events/a", "link_type": "glob", "has_pending": True, **offsets}]
    assert scene.links() == {"events/a": (False, 2)}
    assert scene.delivery.wake_id is None
    assert scene.delivery.delivered_ms == scene.clock()


def test_messages_that_arrive_while_the_webhook_works_make_another_delivery(scene: Scene) -> None:
    """`{"done": true}` acks the snapshot, and not the tail of a moment later."""
    scene.begin(webhook=True)

    def answer(body: dict[str, object]) -> WebhookResponse:
        if body["generation"] == 1:
            scene.append("events/a", "more")
        return DONE

    scene.receiver.answer = answer
    scene.news()
    assert scene.called() == [1, 2]
    assert [body["streams"][0]["acked_offset"][-2:] for body in scene.receiver.bodies] == ["00", "02"]


def test_a_callback_during_the_call_ends_the_delivery(scene: Scene) -> None:
    """What the call itself comes to does not matter then."""
    scene.begin(webhook=True)

    def answer(body: dict[str, object]) -> WebhookResponse:
        scene.callback(body)
        return WRONG

    scene.receiver.answer = answer
    scene.news()
    assert (scene.delivery.wake_id, scene.delivery.failed, scene.called()) == (None, False, [1])


def test_a_lease_that_runs_out_leads_to_another_delivery(scene: Scene) -> None:
    """By its timer, and under a new generation. Until then nothing is delivered by hand either."""
    scene.begin(webhook=True)
    scene.news()
    assert phase(scene.delivery) == "leased"
    with pytest.raises(errors.AlreadyClaimed):
        deliver_now(scene.worker.stores, "s")
    for ms, called in ((29_000, [1]), (2_000, [1, 2])):
        scene.clock.advance(ms)
        scene.work_off()
        assert scene.called() == called
    first, second = scene.receiver.bodies
    with pytest.raises(errors.DeliveryFenced):
        scene.callback(first)
    assert scene.callback(second, done=False) is False
    assert scene.callback(second) is False
    with pytest.raises(errors.DeliveryFenced):
        scene.callback(second)
    assert scene.links() == {"events/a": (False, 2)}


LETTERS: dict[str, Any] = {"max_attempts": 3, "dead_letter_stream": "letters"}


def letters_of(scene: Scene) -> list[tuple[int, str, str, str]]:
    """Attempts and why, and of the one stream from where to where."""
    letters = [(each, *each["streams"]) for each in scene.events("letters")]
    return [
        (each["attempts"], each["error"], of["acked_offset"].lstrip("0"), of["tail_offset"].lstrip("0"))
        for each, of in letters
    ]


def pass_minutes(scene: Scene, count: int) -> None:
    for _ in range(count):
        scene.clock.now_ms += 60_000
        scene.work_off()


def test_a_webhook_that_goes_on_failing_is_given_up_and_the_next_message_is_delivered(scene: Scene) -> None:
    """Once the letter can be written: until then it is tried as ever."""
    scene.begin(webhook=True, **LETTERS)
    scene.receiver.answer = lambda _: WRONG
    scene.news()
    pass_minutes(scene, 5)
    assert (len(scene.receiver.bodies), phase(scene.delivery)) == (6, "retrying")
    scene.stream("letters")
    pass_minutes(scene, 2)
    assert letters_of(scene) == [(7, "status 500", "", "2")]
    assert (phase(scene.delivery), scene.delivery.failed, scene.delivery.attempts) == ("idle", False, 0)
    scene.news()
    pass_minutes(scene, 5)
    assert letters_of(scene)[1:] == [(3, "status 500", "2", "4")]
    scene.receiver.answer = lambda _: DONE
    scene.news()
    assert scene.links() == {"events/a": (False, 6)}


def test_a_pause_follows_a_delivery_that_was_given_up(scene: Scene) -> None:
    scene.stream("letters")
    scene.begin(webhook=True, max_attempts=1, dead_letter_stream="letters")
    scene.receiver.answer = lambda _: WRONG
    for count in range(1, 4):
        scene.news()
        scene.news()
        assert len(scene.receiver.bodies) == count
        scene.clock.now_ms += 1_000
        scene.work_off()
        assert len(scene.receiver.bodies) == count + 1
        scene.clock.now_ms += 1_000
        scene.receiver.bodies.pop()
    assert len(scene.events("letters")) == 6


def test_subscriptions_whose_letters_lead_to_each_other_end_at_the_third(scene: Scene) -> None:
    """A message that comes among such letters has a letter of its own."""
    scene.stream("letters/a")
    scene.begin("events/a", "events/b", webhook=True, max_attempts=1, dead_letter_stream="letters/a")
    scene.subscribe("t", pattern="letters/*", webhook=True, max_attempts=1, dead_letter_stream="events/b")
    scene.receiver.answer = lambda _: WRONG
    scene.news()
    told = set[WakeMessage]()
    for _ in range(10):
        heads = [load_head(scene.worker.stores, stream_key_of(path)) for path in ("events/b", "letters/a")]
        records = {WakeMessage(log_pk(head.record.key, head.record.incarnation), head.last_start or 0)
                   for head in heads if head.tail.offset}  # fmt: skip
        scene.tell(*(records - told))
        told |= records
        pass_minutes(scene, 1)
    assert [each["hops"] for each in scene.events("letters/a")] == [1, 3]
    assert [each["hops"] for each in scene.events("events/b")] == [2]
    assert len(scene.receiver.bodies) == 4
    scene.append("letters/a", {"type": "dead-letter", "hops": 3})
    scene.news("letters/a")
    pass_minutes(scene, 1)
    assert [each["hops"] for each in scene.events("events/b")] == [2, 1]


@pytest.mark.parametrize("claims_at_once", [False, True])
def test_leases_that_run_out_one_after_the_other_are_given_up(scene: Scene, *, claims_at_once: bool) -> None:
    """An ack says that a worker comes on: those before it do not count."""
    scene.stream("letters")
    scene.begin(**LETTERS)
    scene.news()
    scene.claim()
    pass_minutes(scene, 1)
    scene.ack(scene.claim(), done=False)
    scene.news()
    for _ in range(2):
        scene.clock.now_ms += 60_000
        if not claims_at_once:
            scene.work_off()
        scene.claim()
        scene.changed()  # So its timer is set.
        scene.work_off()
    scene.clock.now_ms += 60_000
    with pytest.raises(errors.NoPendingWork):
        scene.claim()
    scene.work_off()
    assert letters_of(scene) == [(3, "no worker was done within its lease", "2", "4")]
    assert phase(scene.delivery) == "idle"


def test_a_webhook_that_fails_is_called_again_after_a_pause(scene: Scene) -> None:
    """Under the same generation. It counts as delivered when it accepts."""
    scene.begin(webhook=True, lease_ttl_ms=600_000)
    scene.receiver.answer = lambda _: WRONG
    scene.news()
    for calls, pause_ms in enumerate((1_000, 2_000, 4_000), 2):
        scene.clock.advance(pause_ms - 1)
        scene.work_off()
        assert len(scene.called()) == calls - 1
        scene.clock.advance(1)
        scene.work_off()
        assert scene.called() == [1] * calls
    assert (scene.delivery.failed, scene.delivery.delivered_ms) == (True, None)
    scene.receiver.answer = lambda _: WebhookResponse(202, b"")
    scene.clock.advance(8_000)
    scene.work_off()
    assert (scene.delivery.failed, scene.delivery.delivered_ms) == (False, scene.clock())
    assert scene.links() == {"events/a": (False, 0)}


@pytest.mark.parametrize(
    ("failure", "calls", "after_ms"),
    [(DeliveryFailure.DROPPED, [1.0], 1_000), (DeliveryFailure.SILENT, [1.0, 10.0], 30_000)],
)
def test_a_webhook_that_may_have_got_the_delivery_is_called_under_a_new_generation(
    scene: Scene, failure: DeliveryFailure, calls: list[float], after_ms: int
) -> None:
    """After the back-off where it has dropped the connection; after its lease where it may be at work, even
    though it had all its time."""
    scene.begin(webhook=True)
    scene.receiver.answer = fails(failure)
    scene.news()
    scene.clock.advance(after_ms - 1)
    scene.work_off()
    assert scene.receiver.seconds == calls
    scene.clock.advance(1_000)
    scene.work_off()
    assert scene.called() == list(range(1, len(calls) + 2))


def test_a_webhook_that_needs_longer_than_a_first_call_is_called_with_all_its_time(scene: Scene) -> None:
    """What it answers to the first call, or calls back about it, is fenced. From then on it has all its time
    at once, until it is quick."""
    scene.begin(webhook=True)
    needs = [1_500, 1_500, 10, 10]

    def answer(_: object) -> WebhookResponse:
        patience_ms = int(scene.receiver.seconds[-1] * 1000)
        scene.clock.advance(min(patience_ms, needs[0]))
        if patience_ms < needs[0]:
            raise DeliveryFailed("silent", DeliveryFailure.SILENT)
        needs.pop(0)
        with pytest.raises(errors.DeliveryFenced):
            scene.callback(scene.receiver.bodies[0])
        return DONE

    scene.receiver.answer = answer
    scene.news()
    assert scene.receiver.seconds == [1.0, 10.0]
    assert scene.called() == [1, 2]
    assert phase(scene.delivery) == "idle"
    for seconds in (10.0, 10.0, 1.0):
        scene.news()
        assert scene.receiver.seconds[-1] == seconds


def test_a_slow_webhook_that_always_has_more_to_do_ends_its_function_in_time(scene: Scene) -> None:
    """Lambda would cut off all that the same batch has under way. The record of the last step leads on."""
    scene.begin(webhook=True)

    def answer(_: object) -> WebhookResponse:
        scene.append("events/a")
        scene.clock.advance(int(min(scene.receiver.seconds[-1], 9) * 1000))
        if scene.receiver.seconds[-1] < 9:
            raise DeliveryFailed("silent", DeliveryFailure.SILENT)
        return DONE

    scene.receiver.answer = answer
    scene.tell(scene.append("events/a"))
    for _ in range(2):
        [notice] = scene.queue.due()
        began_ms, calls = scene.clock(), len(scene.called())
        scene.deliverer.handle(decode_notice(notice))
        assert scene.clock() - began_ms < FUNCTIONS["SubscriptionsFunction"]["Timeout"] * 1000
        assert len(scene.called()) > calls
        scene.changed()


@pytest.mark.parametrize("host", ["hung-{}.example.com", "good.example.com"])
def test_hung_webhooks_leave_room_to_others(scene: Scene, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """Sixty never answer, and twenty messages are worked off at once: the slow ones have half of that, one
    host two. None has ended when the good one is delivered, also where all have one address."""
    monkeypatch.setattr(webhook, "SLOW_SLOTS", 10)
    scene.stream("events/a")
    names = [f"hung-{number}" for number in range(60)]
    for number, name in enumerate(names):
        scene.subscribe(name, webhook=True, webhook_url=f"https://{host.format(number // 3)}/")
    scene.subscribe("good", webhook=True, webhook_url="https://good.example.com/good")
    over, good, hanging = threading.Event(), threading.Event(), list[str]()

    def call(url: Url, _body: bytes, _headers: object, seconds: float) -> WebhookResponse:
        if url.target == "/good":
            good.set()
            return DONE
        if seconds > 1:
            hanging.append(url.host)
            over.wait(60)
        raise DeliveryFailed("silent", DeliveryFailure.SILENT)

    scene.deliverer = replace(scene.deliverer, call=call)
    scene.tell(scene.append("events/a"))
    due = sorted(map(decode_notice, scene.queue.due()), key=lambda each: each.subscription_id == "good")
    with ThreadPoolExecutor(20) as pool:
        try:
            for message in due:
                pool.submit(scene.deliverer.handle, message)
            assert good.wait(50)
            assert 0 < len(hanging) <= 10
            assert max(map(hanging.count, hanging)) <= SLOTS_OF_A_HOST
        finally:
            over.set()
    states = [require_subscription(scene.worker.stores, name).delivery for name in names]
    assert all(state.slow and due_ms(state) is not None for state in states)


def test_a_slot_for_slow_calls_is_free_again_when_its_holder_has_died(scene: Scene) -> None:
    """Each is a process of its own. Who was taken for dead frees nothing."""
    stores = scene.worker.stores
    with ExitStack() as dead:
        assert [dead.enter_context(Fairness().slot(stores, URL)) for _ in range(3)] == [True, True, False]
        scene.clock.advance(WEBHOOK_MS + SPARE_MS - 1)
        with Fairness().slot(stores, URL) as is_free:
            assert not is_free
        scene.clock.advance(1)
        with ExitStack() as alive:
            assert [alive.enter_context(Fairness().slot(stores, URL)) for _ in range(2)] == [True, True]
            dead.close()
            with Fairness().slot(stores, URL) as is_free:
                assert not is_free
    with Fairness().slot(stores, URL) as is_free:
        assert is_free


def test_a_delivery_costs_the_calls_that_the_docs_state(scene: Scene) -> None:
    """A webhook that answers done, one stream of forty that has something new: every call from the record to
    the end. docs/costs.md has these numbers."""
    scene.begin(*(f"events/{number}" for number in range(40)), webhook=True)
    scene.receiver = Receiver(lambda _: DONE)
    scene.deliverer = scene.make_deliverer(scene.worker)
    scene.news("events/7")
    scene.clock.advance(60_000)
    scene.work_off()
    scene.worker.calls.taken()
    scene.news("events/7")
    calls = scene.worker.calls.taken()
    assert calls.pop("PutItem", 0) + calls.pop("UpdateItem", 0) <= 2
    assert calls.pop("TransactWriteItems") == 1
    assert calls.pop("DeleteItem") == 1
    assert sum(calls.values()) <= 24, calls


# --- waking at once ---


def test_a_webhook_that_failed_is_called_again_at_once_under_a_new_generation(scene: Scene) -> None:
    """The attempt before may still be at work, so it is fenced."""
    scene.begin(webhook=True)
    scene.receiver.answer = lambda _: WRONG
    scene.news()
    [first] = scene.receiver.bodies
    stores = scene.worker.stores
    assert phase(scene.delivery) == "retrying"
    scene.receiver.answer = lambda _: DONE
    assert phase(deliver_now(stores, "s").delivery) == "retrying"
    scene.changed()
    scene.work_off()
    assert scene.called() == [1, 2]
    with pytest.raises(errors.DeliveryFenced):
        scene.callback(first)
    with pytest.raises(errors.NoPendingWork):
        deliver_now(stores, "s")

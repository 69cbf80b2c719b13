"""Handles a notice about a subscription: takes the step that the subscription's state and the clock ask for.

The subscription's item alone decides the next step. A notice of an append, a transition or a timer only
causes a look at the item. If two workers handle the same subscription, a conditional write lets only one
commit.

    a state was committed ─▶ its stream record ─▶ notice ─▶ deliver, or set a timer for the time that
                                                            the state names

After a crash the state is handled again: the queue repeats the notice, or the timer fires.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal
from urllib.parse import quote

import orjson
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on

from tidemark.aws.sqs import MAX_DELAY_SECONDS
from tidemark.observability.metrics import PROCESS, WAKES, WEBHOOK_FAILURES
from tidemark.outbound.request import Url
from tidemark.protocol.errors import ProtocolError, StaleEpoch, SubscriptionNotFound, WebhookUrlRejected
from tidemark.protocol.offset import render_offset
from tidemark.protocol.producer import Claim
from tidemark.service.append import AppendRequest, append
from tidemark.service.load import load_head
from tidemark.service.stores import Stores
from tidemark.settings import Settings
from tidemark.subscriptions import state, storage, workers
from tidemark.subscriptions.configuration import SubscriptionKind, parse_webhook_url
from tidemark.subscriptions.lifecycle import activate
from tidemark.subscriptions.notices import Appended, Notice, TimeCame, encode_notice
from tidemark.subscriptions.pending import MAX_HOPS, PendingStream, count_hops, find_pending, stream_key_of
from tidemark.subscriptions.records import StreamFollower, StreamLink, SubscriptionRecord
from tidemark.subscriptions.signing_keys import SigningKeys
from tidemark.subscriptions.state import DeliveryFailure, DeliveryState, Step
from tidemark.subscriptions.storage import SubscriptionChanged
from tidemark.subscriptions.webhook import (
    FIRST_MS,
    SPARE_MS,
    WEBHOOK_MS,
    DeliveryFailed,
    Fairness,
    WebhookResponse,
    call_webhook,
)

_log = logging.getLogger("tidemark")

#: Age in milliseconds at which an unfinished creation is finished here, because its process has died.
CREATION_MS: Final = 60_000
_MAX_STEPS: Final = 20


CallWebhook = Callable[[Url, bytes, Mapping[str, str], float], WebhookResponse]
"""The URL, the body, the headers, the timeout in seconds. Raises DeliveryFailed, WebhookUrlRejected."""


@dataclass(frozen=True, slots=True)
class Deliverer:
    """Delivers webhooks if there are keys, and the settings have the `public_url` at which receivers reach
    this server. `send` queues notices, with a delay in seconds. `chance` gives numbers from 0 to 1."""

    stores: Stores
    send: Callable[[Sequence[str], int], None]
    keys: SigningKeys | None
    settings: Settings
    call: CallWebhook = call_webhook
    chance: Callable[[], float] = random.random
    fairness: Fairness = field(default_factory=Fairness)

    def handle(self, notice: Notice) -> None:
        """Take the due steps. Raises the errors of storage and queue; the notice must then come again."""
        table, name = self.stores.table, notice.subscription_id
        if isinstance(notice, Appended):
            # Write the mark before reading the subscription (the reason is in `storage.py`).
            storage.put_mark(table, notice.mark)
        record = storage.load_subscription(table, name)
        if isinstance(notice, Appended):
            followed_by = notice.mark.subscription_incarnation
            if record is None or record.incarnation != followed_by:
                # Concurrent requests to name and to remove a stream may leave a follower without a link.
                storage.remove_follower(table, StreamFollower(notice.mark.path, name, followed_by))
                return storage.remove_belongings(table, name, followed_by)
        if record is not None:
            with suppress(SubscriptionNotFound):
                self._follow(record, notice)
        elif (ended := storage.load_ended(table, name)) is not None:
            storage.remove_belongings(table, name, ended.ended_id)
        return None

    def _follow(self, record: SubscriptionRecord, notice: Notice) -> None:
        """Take steps until nothing is due. The stream record of the last step sets the timer for the next.
        After a long call the loop ends before Lambda's timeout: the record leads to the next step."""
        began_ms = self.stores.clock_ms()
        for steps in range(_MAX_STEPS):
            now_ms = self.stores.clock_ms()
            if now_ms - began_ms >= WEBHOOK_MS and steps:
                return
            finish_ms = record.created_ms + CREATION_MS
            if now_ms >= finish_ms:
                record = activate(self.stores, record)
            step = state.next_step(record.delivery, now_ms) if record.active else Step.WAIT
            if step is Step.WAIT:
                at_ms = state.due_ms(record.delivery) if record.active else finish_ms
                if at_ms is not None and not steps:
                    self._set_timer(record, notice, at_ms, now_ms)
                return
            with suppress(SubscriptionChanged):  # Another worker took this step.
                if not self._take(record, step):
                    return
            latest = storage.reload_subscription(self.stores.table, record)
            if latest is None:
                return
            record = latest

    def _set_timer(self, record: SubscriptionRecord, notice: Notice, at_ms: int, now_ms: int) -> None:
        """Set the timer for the time that the state names. A timer that fires early, because of SQS's limit
        or clock skew, is set again, unless a later transition has replaced its time."""
        if isinstance(notice, Appended) or (isinstance(notice, TimeCame) and notice.at_ms != at_ms):
            return
        delay_seconds = min(MAX_DELAY_SECONDS, max(0, math.ceil((at_ms - now_ms) / 1000)))
        self.send([encode_notice(TimeCame(record.subscription_id, at_ms))], delay_seconds)

    def _take(self, record: SubscriptionRecord, step: Step) -> bool:
        """Take a step. Returns whether another step may be due at once. Raises SubscriptionChanged."""
        delivery, asked = record.delivery, record.configuration
        streams = find_pending(self.stores, record)
        if not streams:
            if step is Step.LOOK:
                return False
            workers.begin_if_pending(
                self.stores, workers.commit(self.stores, record, state.end_delivery(delivery))
            )
            return True
        is_late = step is Step.EXPIRE and delivery.holder is not None
        if is_late and self._gives_up(record, streams, "no worker was done within its lease"):
            return True
        if step is not Step.DELIVER:
            delivery = workers.new_delivery(self.stores, record)
            PROCESS.add(WAKES, 1, (asked.kind.value,))
        if asked.kind is SubscriptionKind.WEBHOOK:
            self._deliver_webhook(record, delivery, streams)
        else:
            if step is not Step.DELIVER:
                record = workers.commit(self.stores, record, delivery)
            self._write_wake_event(record, streams[0])
        return True

    def _deliver_webhook(
        self, seen: SubscriptionRecord, delivery: DeliveryState, streams: Sequence[PendingStream]
    ) -> None:
        """Call the webhook. Unless the subscription is known to be slow, the timeout is a second. A slow one
        has the full timeout, but needs a slot."""
        if not delivery.slow:
            return self._attempt(seen, delivery, streams, FIRST_MS)
        with self.fairness.slot(self.stores, seen.configuration.webhook_url or "") as is_free:
            if is_free:
                self._attempt(seen, delivery, streams, WEBHOOK_MS)
            else:
                deferred = state.attempt_deferred(delivery, self.stores.clock_ms(), self.chance())
                workers.commit(self.stores, seen, deferred)
        return None

    def _attempt(
        self,
        seen: SubscriptionRecord,
        delivery: DeliveryState,
        streams: Sequence[PendingStream],
        patience_ms: int,
    ) -> None:
        """Commit the attempt, then call the webhook: no other worker can make the same attempt."""
        lease_ttl_ms, began_ms = seen.configuration.lease_ttl_ms, self.stores.clock_ms()
        timeout_ms = min(patience_ms, lease_ttl_ms)
        started = state.start_attempt(
            delivery, began_ms, max(timeout_ms + SPARE_MS, lease_ttl_ms), lease_ttl_ms
        )
        record = workers.commit(self.stores, seen, started)
        try:
            done = answers_done(self._call(record, streams, timeout_ms / 1000))
        except (DeliveryFailed, WebhookUrlRejected) as failed:
            _log.warning("webhook of %s: %s", record.subscription_id, failed)
            self._fail(record, streams, failed, began_ms, timeout_ms)
            return
        now_ms = self.stores.clock_ms()
        slow = now_ms - began_ms >= FIRST_MS
        if done:
            arrived = replace(state.attempt_succeeded(record.delivery, now_ms), slow=slow)
            ended = state.end_delivery(arrived)
            self._while_same(record, lambda latest: workers.finish(self.stores, latest, streams, ended))
        else:
            self._settle(record, lambda seen: replace(state.attempt_succeeded(seen, now_ms), slow=slow))

    def _gives_up(self, record: SubscriptionRecord, streams: Sequence[PendingStream], why: str) -> bool:
        """After `max_attempts`, write a dead letter that names the undelivered streams, and ack them. The
        next delivery begins after a pause. The delivery stays open if its letter cannot be written."""
        if not workers.gives_up(record):
            return False
        attempts, hops = state.attempts_in_vain(record.delivery), count_hops(self.stores.table, streams) + 1
        letter = {"type": "dead-letter", "attempts": attempts, "hops": hops, "error": why}
        named = {"streams": [render_pending(stream) for stream in streams]}
        if hops > MAX_HOPS:
            _log.warning("%s gives up the third dead letter in a row: %s", record.subscription_id, why)
        elif not self._append_event(record, record.configuration.dead_letter_stream, "dead", letter | named):
            return False
        now_ms = self.stores.clock_ms()
        self._while_same(
            record,
            lambda seen: workers.finish(self.stores, seen, streams, state.give_up(seen.delivery, now_ms)),
        )
        return True

    def _append_event(
        self, record: SubscriptionRecord, path: str | None, producer: str, event: Mapping[str, object]
    ) -> bool:
        """Append an event once for each generation: retries are duplicates, because the generation is a
        producer's epoch (§5.2.1). Returns False if the stream refuses the event."""
        generation = record.delivery.generation
        claim = Claim(f"{producer}-{record.incarnation}", generation, 0)
        return append_event(self.stores, record, path, claim, {"generation": generation, **event})

    def _fail(
        self,
        record: SubscriptionRecord,
        streams: Sequence[PendingStream],
        failed: DeliveryFailed | WebhookUrlRejected,
        began_ms: int,
        timeout_ms: int,
    ) -> None:
        PROCESS.add(WEBHOOK_FAILURES)
        now_ms, chance = self.stores.clock_ms(), self.chance()
        failure = failed.failure if isinstance(failed, DeliveryFailed) else DeliveryFailure.REFUSED
        is_silent = failure is DeliveryFailure.SILENT
        if is_silent and timeout_ms < min(WEBHOOK_MS, record.configuration.lease_ttl_ms):
            self._settle(record, lambda seen: state.attempt_abandoned(seen, now_ms))
        elif not self._gives_up(record, streams, str(failed)):
            slow = is_silent or now_ms - began_ms >= FIRST_MS
            self._settle(
                record, lambda seen: replace(state.attempt_failed(seen, now_ms, chance, failure), slow=slow)
            )

    def _call(
        self, record: SubscriptionRecord, streams: Sequence[PendingStream], timeout_seconds: float
    ) -> bytes:
        """Call the webhook; return the body of a 2xx response. Raises DeliveryFailed, WebhookUrlRejected."""
        public_url, allow_local = self.settings.public_url, self.settings.allows_local_webhooks
        if self.keys is None or not public_url:
            raise DeliveryFailed("this server has no signing key or no public URL")
        url = parse_webhook_url(record.configuration.webhook_url or "", allow_local=allow_local)
        now_ms, name = self.stores.clock_ms(), quote(record.subscription_id, safe="")
        body = orjson.dumps(
            {
                "subscription_id": record.subscription_id,
                "wake_id": record.delivery.wake_id,
                "generation": record.delivery.generation,
                "streams": [render_pending(stream) for stream in streams],
                "callback_url": f"{public_url}/v1/stream/__ds/subscriptions/{name}/callback",
                "callback_token": workers.make_token(record, now_ms),
            }
        )
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "Tidemark",
            "Webhook-Signature": self.keys.sign(body, now_ms),
        }
        call = self.call
        if PROCESS.spans:
            call = PROCESS.spans.delivering(call, [stream_key_of(each.link.path) for each in streams])
        response = self.fairness.meanwhile(lambda: call(url, body, headers, timeout_seconds))
        if not 200 <= response.status < 300:
            raise DeliveryFailed(f"status {response.status}")
        return response.body

    def _settle(self, record: SubscriptionRecord, change: Callable[[DeliveryState], DeliveryState]) -> None:
        """Commit the attempt's result, unless a callback or a claim has proved that the delivery arrived."""

        def settle(latest: SubscriptionRecord) -> None:
            if latest.delivery.next_attempt_ms is not None:
                workers.commit(self.stores, latest, change(latest.delivery))

        self._while_same(record, settle)

    def _while_same(self, record: SubscriptionRecord, act: Callable[[SubscriptionRecord], object]) -> None:
        """Act on the latest state, and retry after each conflict, until the delivery is over."""
        latest: SubscriptionRecord | None = record
        while latest is not None and latest.delivery.is_same(record.delivery):
            try:
                act(latest)
            except SubscriptionChanged:
                latest = storage.reload_subscription(self.stores.table, record)
            else:
                return

    def _write_wake_event(self, record: SubscriptionRecord, stream: PendingStream) -> None:
        event = {"type": "wake", "stream": stream.link.path}
        is_appended = self._append_event(record, record.configuration.wake_stream, "wake", event)
        now_ms, chance = self.stores.clock_ms(), self.chance()

        def settled(seen: DeliveryState) -> DeliveryState:
            if is_appended:
                # Leases that ran out still count as failed attempts; refusals of the event do not.
                in_vain = 0 if seen.failed else seen.attempts
                return replace(state.attempt_succeeded(seen, now_ms), attempts=in_vain)
            failed = replace(seen, attempts=seen.attempts + 1)
            return state.attempt_failed(failed, now_ms, chance, DeliveryFailure.REFUSED)

        self._settle(record, settled)


def append_event(
    stores: Stores, record: SubscriptionRecord, path: str | None, claim: Claim, event: Mapping[str, object]
) -> bool:
    """Append an event as an idempotent producer. Returns False if the stream refuses the event."""
    key, content = stream_key_of(path or ""), {"subscription_id": record.subscription_id, **event}
    content["ts"] = stores.clock_ms()
    try:
        content_type = load_head(stores, key).record.content_type
        [outcome] = append(stores, key, [AppendRequest(content_type, orjson.dumps(content), claim=claim)])
        if isinstance(outcome, ProtocolError):
            raise outcome
    except StaleEpoch:
        pass  # A later generation has appended its event.
    except ProtocolError as failure:
        if failure.status >= 500 or failure.status == 429:
            raise
        _log.warning("event of %s: %s", record.subscription_id, failure.message)
        return False
    return True


LinkType = Literal["explicit", "glob"]


class LinkDescription(TypedDict):
    path: str
    link_type: LinkType
    acked_offset: str


class PendingDescription(LinkDescription):
    """A stream with messages after the acked offset."""

    tail_offset: str
    has_pending: Literal[True]


def render_link(link: StreamLink, acked: int) -> LinkDescription:
    link_type: LinkType = "explicit" if link.explicit else "glob"
    return {"path": link.path, "link_type": link_type, "acked_offset": render_offset(acked)}


def render_pending(stream: PendingStream) -> PendingDescription:
    """The entry of a stream in webhooks and claims (§7.1, §7.2)."""
    link = render_link(stream.link, stream.acked)
    return {**link, "tail_offset": render_offset(stream.tail), "has_pending": True}


def answers_done(body: bytes) -> bool:
    """Whether a webhook has answered `{"done": true}`."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(answer, dict) and answer.get("done") is True

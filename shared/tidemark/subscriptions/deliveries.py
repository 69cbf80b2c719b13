"""Attending to a subscription: see what its state and the clock ask for, and do that.

Every message of the queue leads here, whatever it says, so none of them matters by itself: an append, the
record of a transition, a timer. The item alone decides the next step. If two workers handle the same
subscription, a conditional write lets only one commit.

    a state was committed ─▶ its stream record ─▶ message ─▶ attend: deliver, or set a timer for the time
                                                             that the state names

A crash anywhere leaves a state that is attended to again: the message comes back, or its timer comes.
"""

from __future__ import annotations

import logging
import math
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol
from urllib.parse import quote, urlsplit

import orjson
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on

from tidemark.aws.sqs import MAX_DELAY_SECONDS
from tidemark.observability.metrics import PROCESS, WAKES, WEBHOOK_FAILURES
from tidemark.protocol.errors import ProducerFenced, ProtocolError, SubscriptionNotFound, WebhookUrlRejected
from tidemark.protocol.offset import render_offset
from tidemark.protocol.producer import Claim
from tidemark.service.append import AppendRequest, append
from tidemark.service.load import load_head
from tidemark.service.stores import Stores
from tidemark.subscriptions.configuration import SubscriptionKind
from tidemark.subscriptions.lifecycle import activate
from tidemark.subscriptions.messages import Appended, Attention, TimeCame, encode_attention
from tidemark.subscriptions.pending import PendingStream, find_pending, stream_key_of
from tidemark.subscriptions.records import SubscriptionRecord
from tidemark.subscriptions.signing_keys import SigningKeys
from tidemark.subscriptions.state import (
    DeliveryFailure,
    Step,
    WakeState,
    attempt_abandoned,
    attempt_deferred,
    attempt_failed,
    attempt_succeeded,
    begin_wake,
    end_wake,
    next_step,
    start_attempt,
    wakes_at,
)
from tidemark.subscriptions.storage import (
    SubscriptionChanged,
    free_slow_slot,
    load_ended,
    load_subscription,
    put_mark,
    remove_belongings,
    take_slow_slot,
)
from tidemark.subscriptions.token import make_token
from tidemark.subscriptions.webhook import DeliveryFailed, WebhookResponse, call_webhook
from tidemark.subscriptions.webhook_url import WebhookUrl, parse_webhook_url
from tidemark.subscriptions.workers import begin_if_pending, commit, finish_delivery, new_wake_id

_log = logging.getLogger("tidemark")

#: How long a call may take at most; never longer than the lease.
WEBHOOK_MS: Final = 10_000
#: How long a call may take where the receiver has not been slow before.
FIRST_MS: Final = 1_000
#: Calls of slow webhooks at once, of all processes together. Each may hold up a whole batch of messages, so
#: it is half of the template's MaximumConcurrency: the other half is left to the quick.
SLOW_SLOTS: Final = 50
#: The most of these for one host.
SLOTS_OF_A_HOST: Final = 2
#: Beyond the call itself: an attempt that has not ended by then has died.
_SPARE_MS: Final = 5_000
#: A creation that has not finished by then has died, and is finished here.
CREATION_MS: Final = 60_000
_MAX_STEPS: Final = 20


class Timers(Protocol):
    def send(self, bodies: Sequence[str], delay_seconds: int = 0) -> None: ...


class CallWebhook(Protocol):
    def __call__(
        self, url: WebhookUrl, body: bytes, headers: Mapping[str, str], timeout_seconds: float, /
    ) -> WebhookResponse: ...


@dataclass(frozen=True, slots=True)
class Attendant:
    """`public_url` is where receivers reach this server, without a slash at its end; None without it: then
    webhooks are not delivered. `chance` gives numbers from 0 to 1."""

    stores: Stores
    timers: Timers
    keys: SigningKeys | None
    public_url: str | None
    allow_local: bool = False
    call: CallWebhook = call_webhook
    chance: Callable[[], float] = random.random
    #: The slots that calls of this process have: it need not ask the table whether they are free.
    held: set[int] = field(default_factory=set)
    #: Around a call: lets others compute until it has ended.
    meanwhile: Callable[[Callable[[], WebhookResponse]], WebhookResponse] = lambda call: call()

    def attend(self, message: Attention) -> None:
        """Raises what storage and the queue raise; the message must come again then."""
        table = self.stores.table
        if isinstance(message, Appended):
            # The mark comes before the look at the subscription: `storage.py` says why.
            put_mark(table, message.mark)
        record = load_subscription(table, message.subscription_id)
        if isinstance(message, Appended):
            incarnation = message.mark.subscription_incarnation
            if record is None or record.incarnation != incarnation:
                return remove_belongings(table, message.subscription_id, incarnation)
        if record is None:
            ended = load_ended(table, message.subscription_id)
            if ended is not None:
                remove_belongings(table, message.subscription_id, ended.ended_id)
            return None
        with suppress(SubscriptionNotFound):
            self._follow(record, message)
        return None

    def _follow(self, record: SubscriptionRecord, message: Attention) -> None:
        """Step after step, until there is nothing to do before some time. The timer for that time is set by
        the record of the last step."""
        for steps in range(_MAX_STEPS):
            now_ms = self.stores.clock_ms()
            finish_ms = record.created_ms + CREATION_MS
            if not record.active and now_ms >= finish_ms:
                record = activate(self.stores, record)
            step = next_step(record.wake, now_ms) if record.active else Step.WAIT
            if step is Step.WAIT:
                at_ms = wakes_at(record.wake) if record.active else finish_ms
                if at_ms is not None and not steps:
                    self._set_timer(record, message, at_ms, now_ms)
                return
            try:
                if not self._take(record, step, now_ms):
                    return
            except SubscriptionChanged:
                pass  # Another one took this step.
            latest = load_subscription(self.stores.table, record.subscription_id)
            if latest is None or latest.incarnation != record.incarnation:
                return
            record = latest

    def _set_timer(self, record: SubscriptionRecord, message: Attention, at_ms: int, now_ms: int) -> None:
        """The record of a transition sets the timer for the time that its state names. A timer that came too
        early, because of SQS's limit or of two clocks, sets itself again; one that a later transition has
        overtaken does not."""
        if isinstance(message, Appended) or (isinstance(message, TimeCame) and message.at_ms != at_ms):
            return
        delay_seconds = min(MAX_DELAY_SECONDS, max(0, math.ceil((at_ms - now_ms) / 1000)))
        self.timers.send([encode_attention(TimeCame(record.subscription_id, at_ms))], delay_seconds)

    def _take(self, record: SubscriptionRecord, step: Step, now_ms: int) -> bool:
        """Whether there may be more to do right away. Raises SubscriptionChanged."""
        wake, asked = record.wake, record.configuration
        streams = find_pending(self.stores, record)
        if not streams:
            if step is Step.LOOK:
                return False
            begin_if_pending(self.stores, commit(self.stores, record, end_wake(wake)))
            return True
        if step is not Step.DELIVER:
            wake = begin_wake(wake, asked.kind, new_wake_id(self.stores), now_ms, asked.lease_ttl_ms)
            PROCESS.add(WAKES, 1, (asked.kind.value,))
        if asked.kind is SubscriptionKind.WEBHOOK:
            self._deliver_webhook(record, wake, streams)
        else:
            if step is not Step.DELIVER:
                record = commit(self.stores, record, wake)
            self._write_wake_event(record, streams[0])
        return True

    def _deliver_webhook(
        self, seen: SubscriptionRecord, wake: WakeState, streams: Sequence[PendingStream]
    ) -> None:
        """A subscription that is not known to be slow has a second, whatever others of its host do. One that
        needs longer is called again with the full time, in the slots of slow receivers."""
        if not wake.slow:
            return self._attempt(seen, wake, streams, FIRST_MS)
        host, now_ms = urlsplit(seen.configuration.webhook_url or "").netloc, self.stores.clock_ms()
        taken_by = self.stores.new_id()
        slots = [(zlib.crc32(host.encode()) + more) % SLOW_SLOTS for more in range(SLOTS_OF_A_HOST)]
        others = [slot for slot in slots if slot not in self.held]
        until_ms = now_ms + WEBHOOK_MS + _SPARE_MS
        slot = take_slow_slot(self.stores.table, others, taken_by, now_ms, until_ms)
        if slot is None:
            commit(self.stores, seen, attempt_deferred(wake, now_ms, self.chance()))
            return None
        self.held.add(slot)
        try:
            self._attempt(seen, wake, streams, WEBHOOK_MS)
        finally:
            self.held.discard(slot)
            free_slow_slot(self.stores.table, slot, taken_by)

    def _attempt(
        self, seen: SubscriptionRecord, wake: WakeState, streams: Sequence[PendingStream], patience_ms: int
    ) -> None:
        """The attempt is committed before the call, so that no other worker makes it too."""
        lease_ttl_ms, now_ms = seen.configuration.lease_ttl_ms, self.stores.clock_ms()
        timeout_ms = min(patience_ms, lease_ttl_ms)
        started = start_attempt(wake, now_ms, max(timeout_ms + _SPARE_MS, lease_ttl_ms), lease_ttl_ms)
        record = commit(self.stores, seen, started)
        failure: DeliveryFailure | None = None
        done = False
        try:
            response = self._call(record, streams, timeout_ms / 1000)
        except (DeliveryFailed, WebhookUrlRejected) as failed:
            _log.warning("webhook of %s: %s", record.subscription_id, failed)
            failure = failed.failure if isinstance(failed, DeliveryFailed) else DeliveryFailure.REFUSED
        else:
            if not response.is_success:
                _log.warning("webhook of %s: status %d", record.subscription_id, response.status)
                failure = DeliveryFailure.REFUSED
            done = says_done(response.body)
        slow = failure is DeliveryFailure.SILENT or self.stores.clock_ms() - now_ms >= FIRST_MS
        if failure is not None:
            is_first = failure is DeliveryFailure.SILENT and timeout_ms < min(WEBHOOK_MS, lease_ttl_ms)
            self._fail(record, failure, slow=slow, is_first=is_first)
        elif done:
            self._while_same_wake(
                record, lambda latest: finish_delivery(self.stores, latest, streams, slow=slow)
            )
        else:
            self._succeed(record, slow=slow)

    def _fail(
        self, record: SubscriptionRecord, failure: DeliveryFailure, *, slow: bool, is_first: bool
    ) -> None:
        PROCESS.add(WEBHOOK_FAILURES)
        now_ms, chance = self.stores.clock_ms(), self.chance()
        if is_first:
            self._settle(record, lambda state: attempt_abandoned(state, now_ms))
        else:
            self._settle(
                record, lambda state: replace(attempt_failed(state, now_ms, chance, failure), slow=slow)
            )

    def _succeed(self, record: SubscriptionRecord, *, slow: bool = False) -> None:
        now_ms = self.stores.clock_ms()
        self._settle(record, lambda state: replace(attempt_succeeded(state, now_ms), slow=slow))

    def _call(
        self, record: SubscriptionRecord, streams: Sequence[PendingStream], timeout_seconds: float
    ) -> WebhookResponse:
        if self.keys is None or self.public_url is None:
            raise DeliveryFailed("this server has no signing key or no public URL")
        url = parse_webhook_url(record.configuration.webhook_url or "", allow_local=self.allow_local)
        now_ms = self.stores.clock_ms()
        body = orjson.dumps(
            {
                "subscription_id": record.subscription_id,
                "wake_id": record.wake.wake_id,
                "generation": record.wake.generation,
                "streams": [render_pending(stream) for stream in streams],
                "callback_url": f"{self.public_url}/v1/stream/__ds/subscriptions/"
                f"{quote(record.subscription_id, safe='')}/callback",
                "callback_token": make_token(record, now_ms),
            }
        )
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "Tidemark",
            "Webhook-Signature": self.keys.sign(body, now_ms),
        }
        return self.meanwhile(lambda: self.call(url, body, headers, timeout_seconds))

    def _settle(self, record: SubscriptionRecord, change: Callable[[WakeState], WakeState]) -> None:
        """Commit the attempt's result, unless a callback or a claim has shown that the wake has arrived."""

        def settle(latest: SubscriptionRecord) -> None:
            if latest.wake.next_attempt_ms is not None:
                commit(self.stores, latest, change(latest.wake))

        self._while_same_wake(record, settle)

    def _while_same_wake(
        self, record: SubscriptionRecord, act: Callable[[SubscriptionRecord], object]
    ) -> None:
        """Act on the latest state until it holds, unless the wake is over by then."""
        latest: SubscriptionRecord | None = record
        while latest is not None and _is_same_wake(latest, record):
            try:
                act(latest)
            except SubscriptionChanged:
                latest = load_subscription(self.stores.table, record.subscription_id)
            else:
                return

    def _write_wake_event(self, record: SubscriptionRecord, stream: PendingStream) -> None:
        """Write the wake event once for each generation, however often it is retried: the generation is a
        producer's epoch (§5.2.1)."""
        event = {
            "type": "wake",
            "subscription_id": record.subscription_id,
            "stream": stream.link.path,
            "generation": record.wake.generation,
            "ts": self.stores.clock_ms(),
        }
        producer = Claim(f"wake-{record.incarnation}", record.wake.generation, 0)
        key = stream_key_of(record.configuration.wake_stream or "")
        try:
            content_type = load_head(self.stores, key).record.content_type
            outcome = append(
                self.stores, key, [AppendRequest(content_type, orjson.dumps(event), claim=producer)]
            )[0]
            if isinstance(outcome, ProtocolError):
                raise outcome
        except ProducerFenced:
            return  # A later generation is announced already.
        except ProtocolError as failure:
            if failure.status >= 500 or failure.status == 429:
                raise
            _log.warning("wake event of %s: %s", record.subscription_id, failure.message)
            now_ms, chance = self.stores.clock_ms(), self.chance()
            self._settle(
                record,
                lambda state: attempt_failed(
                    replace(state, attempts=state.attempts + 1), now_ms, chance, DeliveryFailure.REFUSED
                ),
            )
        else:
            self._succeed(record)


def _is_same_wake(one: SubscriptionRecord, other: SubscriptionRecord) -> bool:
    return (one.incarnation, one.wake.generation, one.wake.wake_id) == (
        other.incarnation,
        other.wake.generation,
        other.wake.wake_id,
    )


LinkType = Literal["explicit", "glob"]


class PendingDescription(TypedDict):
    """A stream that has something new behind what is acked."""

    path: str
    link_type: LinkType
    acked_offset: str
    tail_offset: str
    has_pending: Literal[True]


def render_pending(stream: PendingStream) -> PendingDescription:
    """The entry of a stream in webhooks and claims (§7.1, §7.2)."""
    return {
        "path": stream.link.path,
        "link_type": "explicit" if stream.link.explicit else "glob",
        "acked_offset": render_offset(stream.acked),
        "tail_offset": render_offset(stream.tail),
        "has_pending": True,
    }


def says_done(body: bytes) -> bool:
    """Whether a webhook has answered `{"done": true}`."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(answer, dict) and answer.get("done") is True

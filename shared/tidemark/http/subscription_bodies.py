"""The bodies of subscriptions' requests and responses (§6, §7), typed for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired, cast

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on

from tidemark.protocol.expiry import render_instant
from tidemark.protocol.offset import render_offset
from tidemark.subscriptions.configuration import (
    DEFAULT_LEASE_MS,
    MAX_LEASE_MS,
    MAX_NAMED_STREAMS,
    MIN_LEASE_MS,
    SubscriptionConfiguration,
    SubscriptionKind,
    normalize,
    parse_webhook_url,
    stream_path,
)
from tidemark.subscriptions.deliveries import LinkDescription, PendingDescription, render_link, render_pending
from tidemark.subscriptions.records import StreamLink, SubscriptionRecord
from tidemark.subscriptions.shared import WINDOW, Settlement, Window
from tidemark.subscriptions.state import DeliveryPhase, DeliveryState, phase
from tidemark.subscriptions.takes import Taken, render_data
from tidemark.subscriptions.workers import Claimed


class WebhookTarget(BaseModel):
    url: StrictStr


class CreateSubscription(BaseModel):
    """The streams to follow, and the kind of delivery (§6.2)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"type": "pull-wake", "pattern": "tasks/*", "wake_stream": "wake/mailer"}]
        }
    )

    type: Literal["webhook", "pull-wake", "shared"]
    pattern: StrictStr | None = None
    streams: Annotated[list[StrictStr], Field(max_length=MAX_NAMED_STREAMS)] | None = None
    webhook: WebhookTarget | None = None
    wake_stream: StrictStr | None = None
    lease_ttl_ms: StrictInt = DEFAULT_LEASE_MS
    description: StrictStr | None = None
    max_attempts: Annotated[StrictInt | None, Field(description="Failures before it gives up.")] = None
    dead_letter_stream: Annotated[StrictStr | None, Field(description="Gets given-up deliveries.")] = None
    key: Annotated[StrictStr | None, Field(description="Shared: JSON pointer to a message's key.")] = None
    offset: Annotated[StrictStr | None, Field(description="Shared: begins here, not at the tail.")] = None

    def configuration(self, *, allow_local: bool) -> SubscriptionConfiguration:
        """Raises InvalidSubscription, WebhookUrlRejected."""
        asked = SubscriptionConfiguration(
            SubscriptionKind(self.type),
            self.pattern,
            tuple(self.streams or ()),
            self.webhook.url if self.webhook else None,
            self.wake_stream,
            self.lease_ttl_ms,
            self.description,
            self.max_attempts,
            self.dead_letter_stream,
            self.key,
            self.offset,
        )
        configuration = normalize(asked)
        if configuration.webhook_url is not None:
            parse_webhook_url(configuration.webhook_url, allow_local=allow_local)
        return configuration


class NameStreams(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"streams": ["tasks/anna"]}]})

    streams: Annotated[list[StrictStr], Field(min_length=1, max_length=MAX_NAMED_STREAMS)]


class ClaimWake(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"worker": "worker-1"}]})

    worker: Annotated[StrictStr, Field(min_length=1, max_length=500)]


class StreamAck(BaseModel):
    """An acknowledged offset. `path` is an alias of `stream`, as in the reference server."""

    model_config = ConfigDict(populate_by_name=True)

    stream: StrictStr = Field(validation_alias=AliasChoices("stream", "path"))
    offset: StrictStr


class AnswerWake(BaseModel):
    """A callback, an ack or a release: the wake's id, and the processed offsets of its streams."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"wake_id": "w_4f2a", "generation": 1, "done": True}]}
    )

    wake_id: StrictStr
    generation: StrictInt
    acks: Annotated[list[StreamAck], Field(max_length=MAX_NAMED_STREAMS)] = []
    done: StrictBool = False

    def offsets(self) -> dict[str, str]:
        """The offsets by path; the last ack of a path counts. Raises InvalidSubscription."""
        return {stream_path(ack.stream): ack.offset for ack in self.acks}


Receipts = Annotated[list[StrictStr], Field(max_length=WINDOW)]


class SettleMessages(BaseModel):
    """The receipts of messages: done, to be given again, or given up."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"worker": "worker-1", "done": []}]})

    worker: Annotated[StrictStr, Field(min_length=1, max_length=500, description="For people.")]
    done: Receipts = []
    release: Receipts = []
    reject: Receipts = []
    extend: Receipts = []

    def settlement(self) -> Settlement:
        return Settlement(self.done, self.release, self.reject, self.extend)


class TakeMessages(SettleMessages):
    max_messages: Annotated[StrictInt, Field(ge=1, le=WINDOW)] = 10
    lease_seconds: Annotated[
        float | None, Field(ge=MIN_LEASE_MS / 1000, le=MAX_LEASE_MS / 1000, strict=True)
    ] = None
    wait_seconds: Annotated[float, Field(ge=0, le=60, strict=True, description="At most as a long-poll.")] = 0


class SubscriptionFault(BaseModel):
    """An error. Some codes have further members, such as `current_holder` (§6, §7)."""

    model_config = ConfigDict(extra="allow")

    code: Annotated[str, Field(examples=["INVALID_REQUEST"])]
    message: str


class SubscriptionRefusal(BaseModel):
    """An error response. Faults of the token or of storage have only a text, as on other paths."""

    error: SubscriptionFault | str
    outcome: Literal["unknown"] | None = Field(None, description="A write may have been carried out (503).")


Instant = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class TakenMessage(TypedDict):
    """A message. `offset` is behind it; `receipt` settles this delivery."""

    offset: str
    data: Any
    encoding: NotRequired[Literal["text", "base64", "omitted"]]
    delivery: Annotated[int, Field(description="1 at first; more if it was given before.")]
    receipt: str


class LateReceipts(TypedDict):
    late: Annotated[list[str], Field(description="The receipts that no longer hold, and changed nothing.")]


class TakenMessages(LateReceipts):
    messages: list[TakenMessage]
    lease_until: Instant | None
    closed: Annotated[bool, Field(description="The stream is closed, and all of its messages are done.")]


class SharedDescription(TypedDict):
    """The state of a shared subscription."""

    key: str | None
    offset: Annotated[str | None, Field(description="Where it began, if not at the tail.")]
    committed_offset: Annotated[str, Field(description="All messages before are done.")]
    under_way: int
    waiting: Annotated[int, Field(description="Messages that were given back, or wait for their key.")]
    oldest_lease_until: Instant | None
    deliveries: int


class WakeDescription(TypedDict):
    """The state of a subscription's wake cycle (an extension)."""

    state: DeliveryPhase
    generation: int
    attempts: Annotated[int, Field(description="The number of failed attempts in a row.")]
    next_attempt_at: Instant | None
    holder: Annotated[str | None, Field(description="The worker that has claimed the wake.")]
    lease_until: Instant | None
    last_delivery_at: Annotated[
        Instant | None,
        Field(
            description="When a webhook last accepted a wake, a worker claimed it, or its event was written."
        ),
    ]


class SigningDescription(TypedDict):
    alg: Literal["ed25519"]
    kid: str
    jwks_url: str


class WebhookDescription(TypedDict):
    url: str
    signing: NotRequired[SigningDescription]


class ListedSubscription(TypedDict):
    """A subscription in a listing, without its streams, which may be many."""

    id: str
    subscription_id: str
    type: Literal["webhook", "pull-wake", "shared"]
    pattern: str | None
    webhook: WebhookDescription | None
    wake_stream: str | None
    lease_ttl_ms: int
    created_at: Instant
    status: Literal["active", "failed"]
    description: str | None
    max_attempts: int | None
    dead_letter_stream: str | None
    wake: WakeDescription


class SubscriptionDescription(ListedSubscription):
    """A subscription with its streams. If more streams follow, `streams_after` is the value for `?after=`."""

    streams: list[LinkDescription]
    streams_after: NotRequired[str]
    shared: NotRequired[SharedDescription]


class SubscriptionPage(TypedDict):
    prefix: str
    subscriptions: list[ListedSubscription]
    next_cursor: str | None
    has_more: bool


class ClaimDescription(TypedDict):
    wake_id: str
    generation: int
    token: str
    streams: list[PendingDescription]
    lease_ttl_ms: int


class WakeAnswered(TypedDict):
    ok: Literal[True]
    next_wake: Annotated[bool, Field(description="Whether another wake follows at once.")]


def render_subscription(
    record: SubscriptionRecord,
    links: Sequence[StreamLink],
    next_after: str | None,
    signing: SigningDescription | None,
) -> SubscriptionDescription:
    """Render a subscription (§6.3)."""
    streams = [render_link(link, link.acked) for link in links]
    rendered = cast("SubscriptionDescription", {**render_listed(record), "streams": streams})
    if signing and rendered["webhook"] is not None:
        rendered["webhook"]["signing"] = signing
    if next_after is not None:
        rendered["streams_after"] = next_after
    return rendered


def render_shared(record: SubscriptionRecord, window: Window, now_ms: int) -> SharedDescription:
    leases = window.lease_ends(now_ms)
    return {
        "key": record.configuration.key,
        "offset": record.configuration.offset,
        "committed_offset": render_offset(window.committed),
        "under_way": len(leases),
        "waiting": sum(each.is_open(now_ms) for each in window.messages),
        "oldest_lease_until": _instant_or_none(min(leases, default=None)),
        "deliveries": window.deliveries,
    }


def render_taken(taken: Taken) -> dict[str, object]:
    return {
        "messages": [
            {
                "offset": render_offset(each.message.end),
                **render_data(taken.content_type, each.data),
                "delivery": each.message.deliveries,
                "receipt": each.receipt,
            }
            for each in taken.given
        ],
        "lease_until": render_instant(taken.until_ms) if taken.given else None,
        "late": taken.late,
        "closed": taken.closed,
    }


def render_listed(record: SubscriptionRecord) -> ListedSubscription:
    asked = record.configuration
    return {
        "id": record.subscription_id,
        "subscription_id": record.subscription_id,
        "type": asked.kind.value,
        "pattern": asked.pattern,
        "webhook": None if asked.webhook_url is None else {"url": asked.webhook_url},
        "wake_stream": asked.wake_stream,
        "lease_ttl_ms": asked.lease_ttl_ms,
        "created_at": render_instant(record.created_ms),
        "status": "failed" if record.delivery.failed else "active",
        "description": asked.description,
        "max_attempts": asked.max_attempts,
        "dead_letter_stream": asked.dead_letter_stream,
        "wake": render_delivery(record.delivery),
    }


def render_delivery(delivery: DeliveryState) -> WakeDescription:
    return {
        "state": phase(delivery),
        "generation": delivery.generation,
        "attempts": delivery.attempts,
        "next_attempt_at": _instant_or_none(delivery.next_attempt_ms),
        "holder": delivery.holder,
        "lease_until": _instant_or_none(delivery.lease_until_ms),
        "last_delivery_at": _instant_or_none(delivery.delivered_ms),
    }


def render_claim(claimed: Claimed) -> ClaimDescription:
    delivery = claimed.record.delivery
    assert delivery.wake_id is not None, "a delivery that is claimed has an id"
    return {
        "wake_id": delivery.wake_id,
        "generation": delivery.generation,
        "token": claimed.token,
        "streams": [render_pending(stream) for stream in claimed.streams],
        "lease_ttl_ms": claimed.record.configuration.lease_ttl_ms,
    }


def _instant_or_none(ms: int | None) -> str | None:
    return None if ms is None else render_instant(ms)

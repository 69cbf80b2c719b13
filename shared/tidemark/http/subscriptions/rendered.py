"""Bodies of responses (§6.2, §6.3, §7). The OpenAPI document shows their types."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, NotRequired, cast

from pydantic import Field
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on

from tidemark.delivery.attend import LinkType, PendingDescription, render_pending
from tidemark.log.records import StreamLink, SubscriptionRecord
from tidemark.protocol.offset import render_offset
from tidemark.protocol.wake_state import WakeState, phase
from tidemark.service.subscriptions.wakes import Claimed

Instant = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class WakeDescription(TypedDict):
    """Where a subscription stands in its wake cycle (an extension)."""

    state: Literal["idle", "delivering", "retrying", "leased", "announced", "claimed"]
    generation: int
    attempts: Annotated[int, Field(description="Those of the present failure.")]
    next_attempt_at: Instant | None
    holder: Annotated[str | None, Field(description="The worker that has claimed it.")]
    lease_until: Instant | None
    last_delivery_at: Annotated[
        Instant | None,
        Field(
            description="When a webhook last accepted a wake, its event was written, or a worker claimed it."
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
    """Without its streams: there may be many."""

    id: str
    subscription_id: str
    type: Literal["webhook", "pull-wake"]
    pattern: str | None
    webhook: WebhookDescription | None
    wake_stream: str | None
    lease_ttl_ms: int
    created_at: Instant
    status: Literal["active", "failed"]
    description: str | None
    wake: WakeDescription


class LinkDescription(TypedDict):
    path: str
    link_type: LinkType
    acked_offset: str


class SubscriptionDescription(ListedSubscription):
    """`streams_after` is there where more streams follow: the value for `?after=`."""

    streams: list[LinkDescription]
    streams_after: NotRequired[str]


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
    """§6.3."""
    streams: list[LinkDescription] = [
        {
            "path": link.path,
            "link_type": "explicit" if link.explicit else "glob",
            "acked_offset": render_offset(link.acked),
        }
        for link in links
    ]
    rendered = cast("SubscriptionDescription", {**render_listed(record), "streams": streams})
    if signing and rendered["webhook"] is not None:
        rendered["webhook"]["signing"] = signing
    if next_after is not None:
        rendered["streams_after"] = next_after
    return rendered


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
        "created_at": _instant(record.created_ms),
        "status": "failed" if record.wake.failed else "active",
        "description": asked.description,
        "wake": render_wake(record.wake),
    }


def render_wake(wake: WakeState) -> WakeDescription:
    return {
        "state": phase(wake).value,
        "generation": wake.generation,
        "attempts": wake.attempts,
        "next_attempt_at": _instant_or_none(wake.next_attempt_ms),
        "holder": wake.holder,
        "lease_until": _instant_or_none(wake.lease_until_ms),
        "last_delivery_at": _instant_or_none(wake.delivered_ms),
    }


def render_claim(claimed: Claimed) -> ClaimDescription:
    wake = claimed.record.wake
    assert wake.wake_id is not None, "a wake that is claimed has an id"
    return {
        "wake_id": wake.wake_id,
        "generation": wake.generation,
        "token": claimed.token,
        "streams": [render_pending(stream) for stream in claimed.streams],
        "lease_ttl_ms": claimed.record.configuration.lease_ttl_ms,
    }


def _instant_or_none(ms: int | None) -> str | None:
    return None if ms is None else _instant(ms)


def _instant(ms: int) -> str:
    """RFC 3339, with milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""Bodies of requests and responses (§6.2, §6.3, §7)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
)

from tidemark.log.records import StreamLink, SubscriptionRecord
from tidemark.protocol.offset import render_offset
from tidemark.protocol.subscription import (
    DEFAULT_LEASE_MS,
    MAX_STREAMS,
    SubscriptionConfiguration,
    SubscriptionKind,
    configure,
)
from tidemark.protocol.wake_state import WakeState, phase
from tidemark.protocol.webhook_url import parse_webhook_url
from tidemark.service.subscriptions.wakes import Ack

#: Acks of one request.
MAX_ACKS = 1_000


def _whole_characters(text: str) -> str:
    """Half of a character, which JSON can escape, is no text that can be stored."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a surrogate without its other half is no character") from None
    return text


Text = Annotated[StrictStr, AfterValidator(_whole_characters)]


class WebhookTarget(BaseModel):
    url: Text


class CreateSubscription(BaseModel):
    """What to follow, and how to be woken (§6.2)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"type": "pull-wake", "pattern": "tasks/*", "wake_stream": "wake/mailer"}]
        }
    )

    type: Literal["webhook", "pull-wake"]
    pattern: Text | None = None
    streams: Annotated[list[Text], Field(max_length=MAX_STREAMS)] | None = None
    webhook: WebhookTarget | None = None
    wake_stream: Text | None = None
    lease_ttl_ms: StrictInt = DEFAULT_LEASE_MS
    description: Text | None = None

    def configuration(self, *, allow_local: bool) -> SubscriptionConfiguration:
        """Raises InvalidSubscription, WebhookUrlRejected."""
        configuration = configure(
            SubscriptionKind(self.type),
            pattern=self.pattern,
            streams=self.streams or (),
            webhook_url=self.webhook.url if self.webhook else None,
            wake_stream=self.wake_stream,
            lease_ttl_ms=self.lease_ttl_ms,
            description=self.description,
        )
        if configuration.webhook_url is not None:
            parse_webhook_url(configuration.webhook_url, allow_local=allow_local)
        return configuration


class NameStreams(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"streams": ["tasks/anna"]}]})

    streams: Annotated[list[Text], Field(min_length=1, max_length=MAX_STREAMS)]


class ClaimWake(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"worker": "worker-1"}]})

    worker: Annotated[Text, Field(min_length=1, max_length=500)]


class StreamAck(BaseModel):
    """`path` is another name of `stream`, as the reference server has it."""

    model_config = ConfigDict(populate_by_name=True)

    stream: Text = Field(validation_alias=AliasChoices("stream", "path"))
    offset: Text


class AnswerWake(BaseModel):
    """A callback, an ack or a release: which wake it is about, and how far its streams are processed."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"wake_id": "w_4f2a", "generation": 1, "done": True}]}
    )

    wake_id: Text
    generation: StrictInt
    acks: Annotated[list[StreamAck], Field(max_length=MAX_ACKS)] = []
    done: StrictBool = False

    def as_acks(self) -> list[Ack]:
        return [Ack(ack.stream.strip("/"), ack.offset) for ack in self.acks]


def render_subscription(
    record: SubscriptionRecord,
    links: list[StreamLink],
    next_after: str | None,
    signing: dict[str, str] | None,
) -> dict[str, Any]:
    """§6.3. `streams_after` is there where more streams follow: the value for `?after=`."""
    rendered = render_listed(record)
    if signing:
        rendered["webhook"] |= {"signing": signing}
    rendered["streams"] = [
        {
            "path": link.path,
            "link_type": "explicit" if link.explicit else "glob",
            "acked_offset": render_offset(link.acked),
        }
        for link in links
    ]
    return rendered | ({"streams_after": next_after} if next_after is not None else {})


def render_listed(record: SubscriptionRecord) -> dict[str, Any]:
    """Without its streams: there may be many. `wake` is an extension."""
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


def render_wake(wake: WakeState) -> dict[str, Any]:
    """Where the subscription stands in its wake cycle. `attempts` counts those of the present failure."""
    return {
        "state": phase(wake).value,
        "generation": wake.generation,
        "attempts": wake.attempts,
        "next_attempt_at": _instant(wake.next_attempt_ms),
        "holder": wake.holder,
        "lease_until": _instant(wake.lease_until_ms),
    }


def _instant(ms: int | None) -> str | None:
    """RFC 3339, with milliseconds."""
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

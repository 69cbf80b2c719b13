"""Bodies of requests (§6.2, §6.3, §7)."""

from __future__ import annotations

from typing import Annotated, Literal

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

from tidemark.protocol.subscription import (
    DEFAULT_LEASE_MS,
    MAX_STREAMS,
    SubscriptionConfiguration,
    SubscriptionKind,
    configure,
)
from tidemark.protocol.webhook_url import parse_webhook_url
from tidemark.service.subscriptions.wakes import Ack

#: Acks of one request.
MAX_ACKS = 1_000


def _whole_characters(text: str) -> str:
    """Refuses a lone surrogate, which JSON can escape but UTF-8 cannot store."""
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


class SubscriptionFault(BaseModel):
    """Some codes come with more, such as `current_holder` (§6, §7)."""

    model_config = ConfigDict(extra="allow")

    code: Annotated[str, Field(examples=["INVALID_REQUEST"])]
    message: str


class SubscriptionRefusal(BaseModel):
    """What is wrong with a token, or with storage, is said in words alone, as everywhere."""

    error: SubscriptionFault | str

"""The answers. Their schemas are in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

Offset = Annotated[str, Field(pattern=r"^[0-9]{16}$", examples=["0000000000000042"])]
Milliseconds = Annotated[int, Field(description="Milliseconds since 1970-01-01T00:00:00Z.")]
Path = Annotated[str, Field(description="The stream's path in its URL.", examples=["/v1/stream/chat/42"])]


class Error(BaseModel):
    error: str


class ListedStream(BaseModel):
    """As a bucket's listing shows it (extensions §1.4)."""

    stream_id: str
    status: Literal["Open", "Closed"]
    content_type: str
    tail_offset: int
    created_at_ms: Milliseconds
    last_write_at_ms: Milliseconds
    expires_at_ms: Annotated[
        int | None, Field(description="When it expires if nobody uses it; null is never.")
    ]


class StreamListingModel(BaseModel):
    prefix: str
    stream_count: int
    streams: list[ListedStream]
    next_cursor: Annotated[str | None, Field(description="Send it as `after` for the next page.")]
    has_more: bool


class ListedBucket(BaseModel):
    bucket_id: str
    streams: Annotated[int, Field(description="It may count streams that have just expired.")]
    created_at_ms: Milliseconds


class BucketListingModel(BaseModel):
    prefix: str
    bucket_count: int
    buckets: list[ListedBucket]
    next_cursor: str | None
    has_more: bool


class MessageCount(BaseModel):
    """Counted where one query finds all batches; else estimated from the latest 500."""

    count: int
    exact: bool


class ExpiryModel(BaseModel):
    ttl_seconds: int | None
    expires_at: str | None
    ends_at_ms: Annotated[int | None, Field(description="When it expires if nobody uses it until then.")]


class ListedProducer(BaseModel):
    id: str
    epoch: int
    seq: Annotated[int, Field(description="The last one accepted.")]
    offset: Offset


class ClosedBy(BaseModel):
    id: str
    epoch: int
    seq: int


class ForkedFrom(BaseModel):
    stream: Path
    offset: Offset


class SnapshotModel(BaseModel):
    offset: Offset
    content_type: str
    bytes: int
    published_at_ms: Milliseconds


class Stats(BaseModel):
    stream: Path
    bucket_id: str
    stream_id: str
    status: Literal["Open", "Closed"]
    content_type: str
    tail_offset: Offset
    retained_offset: Annotated[Offset, Field(description="The first offset that can be read.")]
    packed_offset: Annotated[
        Offset | None, Field(description="What lies before it is kept in packs; null where nothing is.")
    ]
    bytes: Annotated[int, Field(description="From the first retained offset to the tail.")]
    messages: MessageCount
    created_at_ms: Milliseconds
    last_write_at_ms: Milliseconds
    expiry: ExpiryModel | None = None
    closed_by: Annotated[ClosedBy | None, Field(description="The producer that closed it, if one did.")] = (
        None
    )
    producers: list[ListedProducer]
    producers_complete: bool
    forked_from: ForkedFrom | None = None
    forks: Annotated[int, Field(description="How many forks were made of it and still exist.")]
    snapshot: SnapshotModel | None = None


class StartPointModel(BaseModel):
    offset: Offset
    messages: Annotated[int | None, Field(description="How many messages follow, where they were counted.")]
    complete: Annotated[bool, Field(description="False where the batches are too large to count so many.")]


class TimesModel(BaseModel):
    """The writes from `offset` to `end_offset`, in order, a member of each list for each of them."""

    offset: Offset
    end_offset: Annotated[
        Offset, Field(description="Go on from here. It is `offset` where nothing follows that.")
    ]
    times_ms: Annotated[
        list[int], Field(description="When it was written, in milliseconds since 1970-01-01T00:00:00Z.")
    ]
    messages: Annotated[
        list[int],
        Field(description="How many messages it has, or appends where it is not JSON."),
    ]
    bytes: Annotated[
        list[int],
        Field(description="How many bytes it has. A JSON message counts with one more, for its comma."),
    ]


class ListedFork(BaseModel):
    stream: Path
    offset: Annotated[Offset, Field(description="Where it leaves its source.")]
    deleted: Annotated[bool, Field(description="Only its own forks keep it.")]
    forks: Annotated[int, Field(description="How many forks were made of it.")]
    created_at_ms: Milliseconds


class ForksModel(BaseModel):
    stream: Path
    fork_count: Annotated[int, Field(description="Of all its forks, also those that are not listed.")]
    forks: Annotated[
        list[ListedFork], Field(description="In the stream's own bucket, and such as the token may read.")
    ]
    complete: Annotated[
        bool, Field(description="False where the bucket has too many streams, or other buckets have forks.")
    ]


class Me(BaseModel):
    """What this request's token may do."""

    authorization: Annotated[bool, Field(description="False on a server that is open to everybody.")]
    token: Annotated[bool, Field(description="Whether the request had one.")]
    scopes: Annotated[list[str], Field(examples=[["read:v1", "write:agents/user-1/*"]])]

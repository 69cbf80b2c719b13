"""The catalog for people and monitors: listings, stats, start points, and a token's scopes.

The rules of `protocol` check the parameters, not FastAPI, so that the errors are the protocol's.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import orjson
from fastapi import APIRouter, Query, Security
from pydantic import BaseModel, Field, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from tidemark.http import dependencies
from tidemark.http.backend import Backend
from tidemark.http.error_handlers import HAS_TOKEN
from tidemark.http.openapi import answers, takes
from tidemark.http.requests import STREAM_ROOT, header, parse_page_start
from tidemark.log.tails import StreamHead
from tidemark.protocol.authorization import Access, render_scopes
from tidemark.protocol.caching import decide_cache_control, etag_matches, render_etag, render_tail_etag
from tidemark.protocol.compaction import LAST_BY_KEY
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import PLAIN_BUCKET, ListingRequest, StreamKey, parse_plain_listing
from tidemark.service.buckets import list_buckets
from tidemark.service.catalog import AppendTimes, StreamStats, list_streams, load_stats, load_times
from tidemark.service.start_point import MAX_LAST, find_start, parse_start_point

router: Final = APIRouter(tags=["catalog"])
_READ: Final = ["read"]
_READ_STREAM: Final = [Security(dependencies.NAMED_STREAM, scopes=_READ)]

PageOffset = Annotated[str, Field(pattern=r"^[0-9]{16}$", examples=["0000000000000042"])]
Milliseconds = Annotated[int, Field(description="Milliseconds since 1970-01-01T00:00:00Z.")]
Path = Annotated[str, Field(description="The stream's path in its URL.", examples=["/v1/stream/chat/42"])]


class CompactionModel(BaseModel):
    compact: Annotated[
        Literal["last-by-key"] | None,
        Field(description="`last-by-key`: compaction keeps the last message of each key. Null: off."),
    ] = None
    compacted_offset: Annotated[
        PageOffset | None, Field(description="Superseded messages before it are gone; null if none are gone.")
    ] = None


class StreamFields(CompactionModel):
    stream_id: str
    status: Literal["Open", "Closed"]
    content_type: str
    created_at_ms: Milliseconds
    last_write_at_ms: Milliseconds


class ListedStream(StreamFields):
    """A stream in a listing (extensions §1.4)."""

    tail_offset: int
    retained_offset: Annotated[PageOffset, Field(description="The first offset that can be read.")]
    etag: Annotated[str, Field(description="The tail's entity tag, for `If-Match`.")]
    expires_at_ms: Annotated[
        int | None, Field(description="When the stream expires if nobody uses it; null: never.")
    ]


class StreamListing(BaseModel):
    bucket_id: Annotated[str, Field(description="`v1` for the plain surface.")]
    prefix: str
    stream_count: int
    streams: list[ListedStream]
    next_cursor: Annotated[str | None, Field(description="Send it as `after` for the next page.")]
    has_more: bool


class ListedBucket(BaseModel):
    bucket_id: str
    streams: Annotated[int, Field(description="May include streams that have just expired.")]
    created_at_ms: Milliseconds


class BucketListingModel(BaseModel):
    prefix: str
    bucket_count: int
    buckets: list[ListedBucket]
    next_cursor: str | None
    has_more: bool


class MessageCount(BaseModel):
    """Counted if one query finds all batches; else estimated from the latest 500 batches."""

    count: int
    exact: bool


class ExpiryModel(BaseModel):
    ttl_seconds: int | None
    expires_at: str | None
    ends_at_ms: Annotated[int | None, Field(description="When it expires if nobody uses it until then.")]


class ClosedBy(BaseModel):
    id: str
    epoch: int
    seq: Annotated[int, Field(description="The last accepted sequence number.")]


class ListedProducer(ClosedBy):
    offset: PageOffset


class ForkedFrom(BaseModel):
    stream: Path
    offset: PageOffset


class SnapshotModel(BaseModel):
    offset: PageOffset
    content_type: str
    bytes: int
    published_at_ms: Milliseconds


class Stats(StreamFields):
    stream: Path
    bucket_id: str
    tail_offset: PageOffset
    retained_offset: Annotated[PageOffset, Field(description="The first offset that can be read.")]
    packed_offset: Annotated[
        PageOffset | None, Field(description="Messages before it are stored in packs; null if none are.")
    ]
    bytes: Annotated[
        int, Field(description="From the retained offset to the tail, compacted-away messages included.")
    ]
    messages: MessageCount
    expiry: ExpiryModel | None = None
    closed_by: Annotated[ClosedBy | None, Field(description="The producer that closed it, if any.")] = None
    producers: list[ListedProducer]
    producers_complete: bool
    forked_from: ForkedFrom | None = None
    forks: Annotated[int, Field(description="The number of existing forks of the stream.")]
    snapshot: SnapshotModel | None = None


class StartPointModel(BaseModel):
    offset: PageOffset
    messages: Annotated[int | None, Field(description="How many messages follow; null if not counted.")]
    complete: Annotated[bool, Field(description="False if the batches are too large to count them all.")]


class TimesModel(BaseModel):
    """The writes from `offset` to `end_offset`, in order. Each list has one member for each write."""

    offset: PageOffset
    end_offset: Annotated[PageOffset, Field(description="The next page's `offset`; the same at the tail.")]
    times_ms: Annotated[list[Milliseconds], Field(description="The time of the write.")]
    messages: Annotated[list[int], Field(description="Messages of the write; appends if it is not JSON.")]
    bytes: Annotated[
        list[int], Field(description="The bytes of the write. A JSON message counts 1 more, for its comma.")
    ]
    message_ends: Annotated[
        list[PageOffset] | None, Field(description="The end of each message, if `bytes` does not show it.")
    ] = None


class Me(BaseModel):
    """The scopes of the request's token."""

    authorization: Annotated[bool, Field(description="False on a server that is open to everybody.")]
    token: Annotated[bool, Field(description="Whether the request had a token.")]
    scopes: Annotated[list[str], Field(examples=[["read:v1", "write:agents/user-1/*"]])]


def stream_fields(head: StreamHead) -> dict[str, Any]:
    record = head.record
    return {
        "stream_id": record.key.stream_id,
        "status": "Closed" if head.tail.closed else "Open",
        "content_type": record.content_type.served,
        "created_at_ms": record.created_ms,
        "last_write_at_ms": head.written_ms,
        "compact": LAST_BY_KEY if record.compaction else None,
        "compacted_offset": render_offset(record.compacted) if record.compacted else None,
    }


async def stream_listing(backend: Backend, bucket: str, asked: ListingRequest) -> StreamListing:
    found = await backend.call(list_streams, bucket, asked)
    streams = [
        ListedStream(
            **stream_fields(head),
            tail_offset=head.tail.offset,
            retained_offset=render_offset(head.record.retained),
            etag=render_tail_etag(head.record.incarnation, head.tail.offset, closed=head.tail.closed),
            expires_at_ms=head.ends_ms,
        )
        for head in found.streams
    ]
    return StreamListing(
        bucket_id=bucket,
        prefix=asked.prefix,
        stream_count=len(streams),
        streams=streams,
        next_cursor=found.next_cursor,
        has_more=found.has_more,
    )


def stream_path(key: StreamKey) -> str:
    if key.bucket == PLAIN_BUCKET:
        return STREAM_ROOT + quote(key.stream_id)
    return f"/{key.bucket}/{quote(key.stream_id, safe='')}"


def render_stats(found: StreamStats, access: Access) -> Stats:
    head, record, tail = found.head, found.head.record, found.head.tail
    shown = Stats(
        **stream_fields(head),
        stream=stream_path(record.key),
        bucket_id=record.key.bucket,
        tail_offset=render_offset(tail.offset),
        retained_offset=render_offset(record.retained),
        packed_offset=render_offset(record.packed) if record.packed else None,
        bytes=tail.offset - record.retained,
        messages=MessageCount(count=found.messages, exact=found.messages_exact),
        producers=[
            ListedProducer(
                id=state.producer_id, epoch=state.epoch, seq=state.seq, offset=render_offset(state.end)
            )
            for state in found.producers
        ],
        producers_complete=found.producers_complete,
        forks=record.references,
    )
    if found.head.ends_ms is not None:
        expiry = record.expiry
        shown.expiry = ExpiryModel(
            ttl_seconds=expiry.ttl_seconds, expires_at=expiry.expires_at, ends_at_ms=found.head.ends_ms
        )
    if tail.closed_by is not None:
        claim = tail.closed_by
        shown.closed_by = ClosedBy(id=claim.producer_id, epoch=claim.epoch, seq=claim.seq)
    if record.fork is not None and access.may_read(record.fork.point.source):
        source = stream_path(record.fork.point.source)
        shown.forked_from = ForkedFrom(stream=source, offset=render_offset(record.base))
    if record.snapshot is not None:
        snapshot = record.snapshot
        shown.snapshot = SnapshotModel(
            offset=render_offset(snapshot.offset),
            content_type=snapshot.content_type.value,
            bytes=snapshot.size,
            published_at_ms=snapshot.published_ms,
        )
    return shown


def shown_times(found: AppendTimes) -> dict[str, Any]:
    """Return `TimesModel` without pydantic, which is too slow for tens of thousands of numbers."""
    shown: dict[str, Any] = {
        "offset": render_offset(found.start),
        "end_offset": render_offset(found.end),
        "times_ms": found.times_ms,
        "messages": found.messages,
        "bytes": found.sizes,
    }
    if found.message_ends is not None:
        shown["message_ends"] = list(map(render_offset, found.message_ends))
    return shown


def render_times_headers(found: AppendTimes) -> dict[str, str]:
    """Let caches keep the times like the page itself: they never change within an incarnation."""
    has_data = found.end > found.start
    return {
        "Cache-Control": decide_cache_control(
            has_data=has_data, closed=False, from_now=False, is_bound=False
        ),
        "ETag": render_etag(found.incarnation, found.start, found.end, closed=False, crc=found.crc),
    }


@router.get("/v1/streams", dependencies=[Security(dependencies.PLAIN_STREAMS, scopes=_READ)])
async def plain_streams(backend: dependencies.Served, page: dependencies.AskedPage) -> StreamListing:
    """List the streams of the plain surface."""
    asked = parse_plain_listing(page.prefix, page.after, page.limit)
    return await stream_listing(backend, PLAIN_BUCKET, asked)


@router.get("/v1/buckets", dependencies=[Security(dependencies.ALL_BUCKETS, scopes=_READ)])
async def all_buckets(backend: dependencies.Served, page: dependencies.AskedPage) -> BucketListingModel:
    """List the buckets."""
    asked = parse_plain_listing(page.prefix, page.after, page.limit)
    found = await backend.call(list_buckets, asked)
    listed = [
        ListedBucket(bucket_id=record.bucket, streams=record.streams, created_at_ms=record.created_ms)
        for record in found.buckets
    ]
    return BucketListingModel(
        prefix=asked.prefix,
        bucket_count=len(listed),
        buckets=listed,
        next_cursor=listed[-1].bucket_id if found.has_more else None,
        has_more=found.has_more,
    )


@router.get("/v1/stats", dependencies=_READ_STREAM)
async def stream_stats(
    backend: dependencies.Served, key: dependencies.NamedStream, access: dependencies.Granted
) -> Stats:
    """Get a stream's sizes, times, producers, forks and snapshot."""
    return render_stats(await backend.call(load_stats, key), access)


@router.get("/v1/start", dependencies=_READ_STREAM)
async def start_point(
    backend: dependencies.Served,
    key: dependencies.NamedStream,
    last: Annotated[
        int | None,
        WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_LAST}),
        Query(description="A number of messages.", examples=[100]),
    ] = None,
    since: Annotated[
        str | None,
        WithJsonSchema({"type": "string"}),
        Query(
            alias="from", description="Earliest time of a write (RFC 3339).", examples=["2026-11-21T10:00Z"]
        ),
    ] = None,
) -> StartPointModel:
    """Find the offset at which the last messages begin, or the writes from a time on."""
    found = await backend.call(find_start, key, *parse_start_point(last, since))
    return StartPointModel(
        offset=render_offset(found.offset), messages=found.messages, complete=found.complete
    )


@router.get(
    "/v1/times",
    dependencies=_READ_STREAM,
    response_model=TimesModel,
    status_code=200,
    responses=answers({200: ("The times.", "ETag"), 304: ("The times have not changed.", "ETag")}),
    openapi_extra=takes("If-None-Match"),
)
async def append_times(
    request: Request,
    backend: dependencies.Served,
    key: dependencies.NamedStream,
    offset: Annotated[
        str,
        Query(
            description="The offset of the page, as in a read.",
            examples=["0000000000000042"],
            json_schema_extra={"pattern": "^(-1|[0-9]{16})$"},
        ),
    ] = "-1",
) -> Response:
    """Get the times at which the messages of a page were appended."""
    found = await backend.call(load_times, key, parse_page_start(offset))
    headers = render_times_headers(found)
    if etag_matches(header(request, "If-None-Match"), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(orjson.dumps(shown_times(found)), headers=headers, media_type="application/json")


@router.get("/v1/me", dependencies=[Security(dependencies.ANY_TOKEN, scopes=_READ)])
async def me(request: Request, backend: dependencies.Served, access: dependencies.Granted) -> Me:
    """Get the scopes of this request's token."""
    is_on = backend.settings.authorization.is_on
    return Me(authorization=is_on, token=HAS_TOKEN in request.scope, scopes=render_scopes(access))

"""The bucket surface: buckets, snapshots and the bootstrap (extensions §1 and §2).

All responses describe this moment, so none is cached.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Security
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidemark.blobs import PUT_HEADERS
from tidemark.http.backend import backend_of
from tidemark.http.openapi import AS_BYTES, answers, takes
from tidemark.http.requests import (
    MAX_BODY_BYTES,
    SETTING_HEADERS,
    STREAM_ROOT,
    bucket_of,
    parse_body_type,
    parse_settings,
    read_body,
    single,
    single_header,
    stream_of,
)
from tidemark.http.responses import absolute_url, data_headers, listed_fields, setting_headers
from tidemark.http.routing import DirectRoute
from tidemark.http.scopes import BELOW_STREAM, BUCKET, STREAMS_OF_BUCKET
from tidemark.log.records import BucketRecord, Snapshot
from tidemark.protocol import messages
from tidemark.protocol.caching import NO_STORE, render_tail_etag
from tidemark.protocol.compaction import MODE_HEADER, Compaction
from tidemark.protocol.errors import Malformed, PayloadTooLarge
from tidemark.protocol.messages import ContentType, parse_content_type
from tidemark.protocol.offset import render_offset
from tidemark.protocol.retention import AGE_HEADER, SIZE_HEADER, Retention
from tidemark.protocol.snapshot import (
    MAX_UPLOAD_BYTES,
    choose_boundary,
    parse_snapshot_offset,
    parse_upload_id,
    render_multipart,
)
from tidemark.protocol.stream_key import ListingRequest, parse_listing
from tidemark.service import buckets
from tidemark.service.catalog import Listing, list_streams
from tidemark.service.snapshots import (
    FEW_PARTS,
    Bootstrap,
    PublishRequest,
    SnapshotReading,
    Upload,
    begin_upload,
    bootstrap,
    delete_snapshot,
    latest_snapshot,
    publish_snapshot,
    read_snapshot,
)

router: Final = APIRouter(route_class=DirectRoute, tags=["buckets"])
_STREAM: Final = "/{bucket:bucket}/{stream:stream}"
_SNAPSHOT_HEADERS: Final = ("Stream-Snapshot-Offset", "Stream-Next-Offset", "Stream-Up-To-Date")
_BUCKET_READ: Final = [Security(BUCKET, scopes=["read"])]
_BUCKET_MANAGE: Final = [Security(BUCKET, scopes=["manage"])]
_READ: Final = [Security(BELOW_STREAM, scopes=["read"])]
#: A snapshot makes older data unreadable, so publishing takes the right to manage, not to write.
_MANAGE: Final = [Security(BELOW_STREAM, scopes=["manage"])]

_WAY_OUT = "; POST to this path followed by /upload says where to put a larger snapshot"


def parse_list(request: Request) -> ListingRequest:
    return parse_listing(single(request, "prefix"), single(request, "after"), single(request, "limit"))


def snapshot_offset(request: Request) -> int:
    return parse_snapshot_offset(request.path_params["at"])


async def parse_publish(request: Request, offset: int) -> PublishRequest:
    upload = parse_upload_id(single_header(request, "Snapshot-Upload"))
    body_type = parse_body_type(request) or parse_content_type(messages.DEFAULT)
    try:
        body = await read_body(request)
    except PayloadTooLarge:
        raise PayloadTooLarge(MAX_BODY_BYTES, _WAY_OUT) from None
    if upload is not None and body:
        raise Malformed("A publish that names a Snapshot-Upload has no body of its own")
    return PublishRequest(offset, body_type, body, upload)


async def parse_bucket_creation(request: Request, bucket: str) -> tuple[Retention, Compaction | None]:
    """A bucket takes no body, and of a stream's headers only the settings that its streams get. A request
    with other headers was meant for a stream: a forgotten `/v1/stream` does not create a bucket. So was one
    with a content type from `fetch`, which the official clients and their command line send. Raises
    Malformed."""
    body_type = parse_body_type(request)
    settings = set(map(str.lower, SETTING_HEADERS))
    is_typed = body_type is not None and (not body_type.is_json or "sec-fetch-mode" in request.headers)
    is_for_stream = is_typed or any(
        name.startswith("stream-") and name not in settings for name in request.headers
    )
    if is_for_stream or await read_body(request):
        raise Malformed(
            f"/{bucket} is a bucket's path, and a bucket has no body, no Content-Type, and none of a "
            f"stream's headers but {AGE_HEADER}, {SIZE_HEADER} and {MODE_HEADER}; "
            f"to create a stream, PUT {STREAM_ROOT}{bucket} or PUT /{bucket}/{{stream id}}"
        )
    return parse_settings(request)


def check_bootstrap(request: Request) -> None:
    """Extensions §3.1: it is answered once, and there is nothing to wait for."""
    if "live" in request.query_params:
        raise Malformed("bootstrap is answered once; read on from its Stream-Next-Offset with live")


_NOT_CACHED = {"Cache-Control": NO_STORE}
#: Without a type, a 204 leaves an HTTP API as application/json anyhow.
_EMPTY = _NOT_CACHED | {"Content-Type": "application/json"}


def render_bucket_made(request: Request, record: BucketRecord) -> Response:
    headers = {"Location": absolute_url(request)} | _bucket_headers(record)
    bucket = record.bucket
    note = f"A bucket was made; to create a stream, PUT {STREAM_ROOT}{bucket} or PUT /{bucket}/{{stream id}}"
    return JSONResponse(_bucket(record) | {"note": note}, 201, headers)


def render_bucket(record: BucketRecord) -> Response:
    return JSONResponse(_bucket(record), headers=_bucket_headers(record))


def _bucket(record: BucketRecord) -> dict[str, Any]:
    names = ("compact", "compact_after", "compact_tombstones", "compact_key")
    return {
        "bucket_id": record.bucket,
        "streams": record.streams,
        "created_at_ms": record.created_ms,
        **record.retention.named("retain_seconds", "retain_bytes"),
        **(record.compaction.named(*names) if record.compaction else {}),
    }


def _bucket_headers(record: BucketRecord) -> dict[str, str]:
    return _NOT_CACHED | setting_headers(record.retention, record.compaction)


def render_listing(bucket_id: str, request: ListingRequest, found: Listing) -> Response:
    streams = [
        {
            **listed_fields(head),
            "tail_offset": head.tail.offset,
            "retained_offset": render_offset(head.record.retained),
            "etag": render_tail_etag(head.record.incarnation, head.tail.offset, closed=head.tail.closed),
        }
        for head in found.streams
    ]
    body = {
        "bucket_id": bucket_id,
        "prefix": request.prefix,
        "stream_count": len(found.streams),
        "streams": streams,
        "next_cursor": found.next_cursor,
        "has_more": found.has_more,
    }
    return JSONResponse(body, headers=_NOT_CACHED)


def render_nothing() -> Response:
    return Response(status_code=204, headers=_EMPTY)


def render_published(snapshot: Snapshot) -> Response:
    return Response(status_code=204, headers=_EMPTY | _snapshot_offset(snapshot))


def render_upload_begun(upload: Upload) -> Response:
    body = {
        "upload": str(upload.id),
        "method": "PUT",
        "url": upload.url,
        "headers": PUT_HEADERS,
        "url_expires_at_ms": upload.url_expires_ms,
        "publish_before_ms": upload.id.lapses_ms,
        "max_bytes": MAX_UPLOAD_BYTES,
    }
    return JSONResponse(body, 201, _NOT_CACHED)


def render_latest_snapshot(snapshot: Snapshot) -> Response:
    return _redirect(f"snapshot/{render_offset(snapshot.offset)}", _snapshot_offset(snapshot))


def render_snapshot(reading: SnapshotReading) -> Response:
    """A redirect carries the same headers, because S3, where it leads, knows nothing of streams."""
    found, tail = reading.snapshot, reading.head.tail
    headers = _NOT_CACHED | _snapshot_offset(found) | {"Stream-Next-Offset": render_offset(found.offset)}
    if tail.offset == found.offset:
        headers["Stream-Up-To-Date"] = "true"
    if reading.url is not None:
        return _redirect(reading.url, headers)
    return Response(
        reading.data,
        headers=data_headers(found.content_type) | headers | {"Content-Type": found.content_type.value},
    )


def render_bootstrap(made: Bootstrap) -> Response:
    headers = _NOT_CACHED | {"Stream-Next-Offset": render_offset(made.next_offset)}
    headers |= _snapshot_offset(made.snapshot) if made.snapshot else {"Stream-Snapshot-Offset": "-1"}
    if made.up_to_date:
        headers["Stream-Up-To-Date"] = "true"
    if made.closed:
        headers["Stream-Closed"] = "true"
    if made.url is not None:
        return _redirect(made.url, headers)
    boundary = choose_boundary(made.parts)
    headers |= data_headers(ContentType(f"multipart/mixed; boundary={boundary}", "multipart/mixed"))
    return Response(render_multipart(made.parts, boundary), headers=headers)


def _redirect(location: str, headers: dict[str, str]) -> Response:
    return Response(status_code=307, headers=_EMPTY | headers | {"Location": location})


def _snapshot_offset(snapshot: Snapshot) -> dict[str, str]:
    return {"Stream-Snapshot-Offset": render_offset(snapshot.offset)}


@router.put(
    "/{bucket:bucket}",
    dependencies=_BUCKET_MANAGE,
    responses=answers({201: ("It was made.", "Location", *SETTING_HEADERS), 409: ("It is there.",)}),
    openapi_extra=takes(*SETTING_HEADERS),
)
async def create_bucket(request: Request) -> Response:
    """Create a bucket (extensions §1.2)."""
    backend, bucket = backend_of(request), bucket_of(request)
    retention, compaction = await parse_bucket_creation(request, bucket)
    made = await backend.call(buckets.create_bucket, bucket, retention, compaction)
    return render_bucket_made(request, made)


@router.get(
    "/{bucket:bucket}",
    dependencies=_BUCKET_READ,
    responses=answers({200: ("It is there.", *SETTING_HEADERS)}),
)
async def describe_bucket(request: Request) -> Response:
    """A bucket (extensions §1.3)."""
    backend, bucket = backend_of(request), bucket_of(request)
    return render_bucket(await backend.call(buckets.describe_bucket, bucket))


@router.delete(
    "/{bucket:bucket}",
    dependencies=_BUCKET_MANAGE,
    responses=answers({204: ("It is gone.",), 409: ("It is not empty.",)}),
)
async def remove_bucket(request: Request) -> Response:
    """Delete an empty bucket (extensions §1.5)."""
    backend, bucket = backend_of(request), bucket_of(request)
    await backend.call(buckets.delete_bucket, bucket)
    return render_nothing()


@router.get(
    "/{bucket:bucket}/streams",
    dependencies=[Security(STREAMS_OF_BUCKET, scopes=["read"])],
    openapi_extra=takes("prefix", "after", "limit"),
)
async def list_bucket(request: Request) -> Response:
    """The streams of a bucket, in the order of their names' bytes (extensions §1.4)."""
    backend, bucket, asked = backend_of(request), bucket_of(request), parse_list(request)
    found = await backend.call(list_streams, bucket, asked)
    return render_listing(bucket, asked, found)


@router.get(
    f"{_STREAM}/snapshot",
    dependencies=_READ,
    responses=answers({307: ("There.", "Location", "Stream-Snapshot-Offset")}),
    response_class=Response,
)
async def redirect_to_latest(request: Request) -> Response:
    """Where the latest snapshot is (extensions §2.2)."""
    backend, key = backend_of(request), stream_of(request)
    return render_latest_snapshot(await backend.call(latest_snapshot, key))


@router.put(
    f"{_STREAM}/snapshot/{{at:segment}}",
    dependencies=_MANAGE,
    responses=answers(
        {
            204: ("It is the latest.", "Stream-Snapshot-Offset"),
            409: ("Beyond the tail, or the upload is not there.", "Stream-Next-Offset"),
            413: ("Too large for one request.",),
        }
    ),
    openapi_extra=takes("Snapshot-Upload", body=True),
)
async def put_snapshot(request: Request) -> Response:
    """Publish a snapshot; what lies before it can be read no more (extensions §2.1)."""
    backend, key = backend_of(request), stream_of(request)
    publish_request = await parse_publish(request, snapshot_offset(request))
    return render_published(await backend.call(publish_snapshot, key, publish_request))


@router.get(
    f"{_STREAM}/snapshot/{{at:segment}}",
    dependencies=_READ,
    responses=answers(
        {
            200: ("Its bytes.", *_SNAPSHOT_HEADERS),
            307: ("Where its bytes are, for a while.", "Location", *_SNAPSHOT_HEADERS),
        },
        AS_BYTES,
    ),
    response_class=Response,
)
async def get_snapshot(request: Request) -> Response:
    """A snapshot (extensions §2.3)."""
    backend, key, offset = backend_of(request), stream_of(request), snapshot_offset(request)
    return render_snapshot(await backend.call(read_snapshot, key, offset))


@router.delete(
    f"{_STREAM}/snapshot/{{at:segment}}",
    dependencies=_MANAGE,
    responses=answers({204: ("It is gone.",), 409: ("It is the latest.",)}),
)
async def remove_snapshot(request: Request) -> Response:
    """Delete a superseded snapshot (extensions §2.4)."""
    backend, key, offset = backend_of(request), stream_of(request), snapshot_offset(request)
    await backend.call(delete_snapshot, key, offset)
    return render_nothing()


@router.post(
    f"{_STREAM}/snapshot/{{at:segment}}/upload",
    dependencies=_MANAGE,
    responses=answers({201: ("There, and for how long.",), 409: ("Beyond the tail.", "Stream-Next-Offset")}),
)
async def prepare_upload(request: Request) -> Response:
    """Where to put a snapshot that is too large for a request."""
    backend, key, offset = backend_of(request), stream_of(request), snapshot_offset(request)
    return render_upload_begun(await backend.call(begin_upload, key, offset))


@router.get(
    f"{_STREAM}/bootstrap",
    dependencies=_READ,
    responses=answers(
        {
            200: ("Them, as parts.", *_SNAPSHOT_HEADERS, "Stream-Closed"),
            307: ("Where they are, for a while.", "Location", *_SNAPSHOT_HEADERS, "Stream-Closed"),
        },
        AS_BYTES,
    ),
    response_class=Response,
)
async def get_bootstrap(request: Request) -> Response:
    """The latest snapshot and the messages since, in one answer (extensions §3)."""
    backend, key = backend_of(request), stream_of(request)
    check_bootstrap(request)
    made = await backend.call(bootstrap, key)
    render = partial(render_bootstrap, made)
    # Rendering many parts takes long, so a thread does it.
    return await asyncio.to_thread(render) if len(made.parts) > FEW_PARTS else render()

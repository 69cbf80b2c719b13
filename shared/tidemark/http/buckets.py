"""The bucket surface: buckets, snapshots and the bootstrap (extensions §1 and §2). No response is cached."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Security
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidemark.blobs import PUT_HEADERS
from tidemark.http import dependencies, requests
from tidemark.http.catalog import Milliseconds, StreamListing, stream_listing
from tidemark.http.openapi import AS_BYTES, answers, takes
from tidemark.http.responses import EMPTY, absolute_url, data_headers, setting_headers
from tidemark.log.records import BucketRecord, Snapshot
from tidemark.protocol import messages
from tidemark.protocol import snapshot as rules
from tidemark.protocol.compaction import MODE_HEADER, Compaction
from tidemark.protocol.errors import Malformed, PayloadTooLarge
from tidemark.protocol.expiry import AGE_HEADER, SIZE_HEADER, Retention
from tidemark.protocol.messages import ContentType, parse_content_type
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import parse_listing
from tidemark.service import buckets, snapshots

router: Final = APIRouter(tags=["buckets"])
_STREAM: Final = "/{bucket}/{stream}"
_SNAPSHOT_HEADERS: Final = ("Stream-Snapshot-Offset", "Stream-Next-Offset", "Stream-Up-To-Date")
_BUCKET_READ: Final = [Security(dependencies.BUCKET, scopes=["read"])]
_BUCKET_MANAGE: Final = [Security(dependencies.BUCKET, scopes=["manage"])]
_READ: Final = [Security(dependencies.STREAM_IN_BUCKET, scopes=["read"])]
#: A snapshot makes older data unreadable, so publishing takes the right to manage, not to write.
_MANAGE: Final = [Security(dependencies.STREAM_IN_BUCKET, scopes=["manage"])]

_WAY_OUT = "; POST to this path followed by /upload returns a URL to which you can PUT a larger snapshot"


async def offset_in_path(at: str) -> int:
    """Parse a snapshot's offset. Raises Malformed."""
    return rules.parse_snapshot_offset(at)


OffsetInPath = Annotated[int, Depends(offset_in_path)]


async def parse_publish(request: Request, offset: int) -> snapshots.PublishRequest:
    upload = rules.parse_upload_id(requests.single_header(request, "Snapshot-Upload"))
    body_type = requests.parse_body_type(request) or parse_content_type(messages.DEFAULT)
    try:
        body = await requests.read_body(request)
    except PayloadTooLarge:
        raise PayloadTooLarge(requests.MAX_BODY_BYTES, _WAY_OUT) from None
    if upload is not None and body:
        raise Malformed("A publish that names a Snapshot-Upload has no body of its own")
    return snapshots.PublishRequest(offset, body_type, body, upload)


async def parse_bucket_creation(request: Request, bucket: str) -> tuple[Retention, Compaction | None]:
    """Parse the settings that the bucket's streams get. A request with a body, another header of streams, or
    a content type was meant for a stream, with `/v1/stream` forgotten, and must not create a bucket. Only
    application/json is allowed, and only without `Sec-Fetch-Mode`, a header that `fetch` sends and so do the
    official clients. Raises Malformed."""
    body_type = requests.parse_body_type(request)
    settings = set(map(str.lower, requests.SETTING_HEADERS))
    is_typed = body_type is not None and (not body_type.is_json or "sec-fetch-mode" in request.headers)
    is_for_stream = is_typed or any(
        name.startswith("stream-") and name not in settings for name in request.headers
    )
    if is_for_stream or await requests.read_body(request):
        raise Malformed(
            f"/{bucket} is a bucket's path, and a bucket has no body, no Content-Type, and none of a "
            f"stream's headers but {AGE_HEADER}, {SIZE_HEADER} and {MODE_HEADER}; " + streams_go_to(bucket)
        )
    return requests.parse_settings(request)


def streams_go_to(bucket: str) -> str:
    return f"to create a stream, PUT {requests.STREAM_ROOT}{bucket} or PUT /{bucket}/{{stream id}}"


class UploadBegun(BaseModel):
    upload: Annotated[str, Field(description="Send it as `Snapshot-Upload` with the publish.")]
    method: Literal["PUT"] = "PUT"
    url: str
    headers: Annotated[dict[str, str], Field(description="Headers to send with the bytes.")] = PUT_HEADERS
    url_expires_at_ms: Milliseconds
    publish_before_ms: Milliseconds
    max_bytes: int = rules.MAX_UPLOAD_BYTES


def bucket_fields(record: BucketRecord) -> dict[str, Any]:
    names = ("compact", "compact_after", "compact_tombstones", "compact_key")
    return {
        "bucket_id": record.bucket,
        "streams": record.streams,
        "created_at_ms": record.created_ms,
        **record.retention.named("retain_seconds", "retain_bytes"),
        **(record.compaction.named(*names) if record.compaction else {}),
    }


def render_snapshot(reading: snapshots.SnapshotReading) -> Response:
    """Render the snapshot, or a redirect to S3 with the stream's headers, because S3 sends none of them."""
    found, tail = reading.snapshot, reading.head.tail
    headers = _snapshot_offset(found) | {"Stream-Next-Offset": render_offset(found.offset)}
    if tail.offset == found.offset:
        headers["Stream-Up-To-Date"] = "true"
    if reading.url is not None:
        return _redirect(reading.url, headers)
    return Response(
        reading.data,
        headers=data_headers(found.content_type) | headers | {"Content-Type": found.content_type.value},
    )


def render_bootstrap(made: snapshots.Bootstrap) -> Response:
    headers = {"Stream-Next-Offset": render_offset(made.next_offset)}
    headers |= _snapshot_offset(made.snapshot) if made.snapshot else {"Stream-Snapshot-Offset": "-1"}
    if made.up_to_date:
        headers["Stream-Up-To-Date"] = "true"
    if made.closed:
        headers["Stream-Closed"] = "true"
    if made.url is not None:
        return _redirect(made.url, headers)
    boundary = rules.choose_boundary(made.parts)
    headers |= data_headers(ContentType(f"multipart/mixed; boundary={boundary}", "multipart/mixed"))
    return Response(rules.render_multipart(made.parts, boundary), headers=headers)


def _redirect(location: str, headers: dict[str, str]) -> Response:
    return Response(status_code=307, headers=EMPTY | headers | {"Location": location})


def _snapshot_offset(snapshot: Snapshot) -> dict[str, str]:
    return {"Stream-Snapshot-Offset": render_offset(snapshot.offset)}


@router.put(
    "/{bucket}",
    dependencies=_BUCKET_MANAGE,
    status_code=201,
    responses=answers(
        {201: ("The bucket is created.", "Location", *requests.SETTING_HEADERS), 409: ("The bucket exists.",)}
    ),
    openapi_extra=takes(*requests.SETTING_HEADERS),
)
async def create_bucket(request: Request, backend: dependencies.Served, bucket: str) -> Response:
    """Create a bucket (extensions §1.2)."""
    retention, compaction = await parse_bucket_creation(request, bucket)
    made = await backend.call(buckets.create_bucket, bucket, retention, compaction)
    headers = {"Location": absolute_url(request)} | setting_headers(made.retention, made.compaction)
    note = f"A bucket was made; {streams_go_to(bucket)}"
    return JSONResponse(bucket_fields(made) | {"note": note}, 201, headers)


@router.get(
    "/{bucket}",
    dependencies=_BUCKET_READ,
    responses=answers({200: ("The bucket exists.", *requests.SETTING_HEADERS)}),
)
async def describe_bucket(backend: dependencies.Served, bucket: str) -> Response:
    """Describe a bucket (extensions §1.3)."""
    found = await backend.call(buckets.describe_bucket, bucket)
    return JSONResponse(bucket_fields(found), headers=setting_headers(found.retention, found.compaction))


@router.delete(
    "/{bucket}",
    dependencies=_BUCKET_MANAGE,
    status_code=204,
    responses=answers({204: ("The bucket is deleted.",), 409: ("The bucket is not empty.",)}),
)
async def remove_bucket(backend: dependencies.Served, bucket: str) -> None:
    """Delete an empty bucket (extensions §1.5)."""
    await backend.call(buckets.delete_bucket, bucket)


@router.get("/{bucket}/streams", dependencies=[Security(dependencies.STREAMS_OF_BUCKET, scopes=["read"])])
async def list_bucket(
    backend: dependencies.Served, bucket: str, page: dependencies.AskedPage
) -> StreamListing:
    """List the streams of a bucket, ordered by the bytes of their names (extensions §1.4)."""
    return await stream_listing(backend, bucket, parse_listing(page.prefix, page.after, page.limit))


@router.get(
    f"{_STREAM}/snapshot",
    dependencies=_READ,
    status_code=307,
    responses=answers({307: ("The latest snapshot is at `Location`.", "Location", "Stream-Snapshot-Offset")}),
    response_class=Response,
)
async def redirect_to_latest(backend: dependencies.Served, key: dependencies.StreamInPath) -> Response:
    """Redirect to the latest snapshot (extensions §2.2)."""
    latest = await backend.call(snapshots.latest_snapshot, key)
    return _redirect(f"snapshot/{render_offset(latest.offset)}", _snapshot_offset(latest))


@router.put(
    f"{_STREAM}/snapshot/{{at}}",
    dependencies=_MANAGE,
    status_code=204,
    responses=answers(
        {
            204: ("The snapshot is the latest.", "Stream-Snapshot-Offset"),
            409: ("The offset is beyond the tail, or the upload is missing.", "Stream-Next-Offset"),
            413: ("The snapshot is too large for one request.",),
        }
    ),
    openapi_extra=takes("Snapshot-Upload", body=True),
)
async def put_snapshot(
    request: Request, backend: dependencies.Served, key: dependencies.StreamInPath, offset: OffsetInPath
) -> Response:
    """Publish a snapshot. Messages before its offset can no longer be read (extensions §2.1)."""
    publish_request = await parse_publish(request, offset)
    published = await backend.call(snapshots.publish_snapshot, key, publish_request)
    return Response(status_code=204, headers=EMPTY | _snapshot_offset(published))


@router.get(
    f"{_STREAM}/snapshot/{{at}}",
    dependencies=_READ,
    responses=answers(
        {
            200: ("The snapshot's bytes.", *_SNAPSHOT_HEADERS),
            307: ("A temporary URL of the snapshot's bytes.", "Location", *_SNAPSHOT_HEADERS),
        },
        AS_BYTES,
    ),
    response_class=Response,
)
async def get_snapshot(
    backend: dependencies.Served, key: dependencies.StreamInPath, offset: OffsetInPath
) -> Response:
    """Read a snapshot (extensions §2.3)."""
    return render_snapshot(await backend.call(snapshots.read_snapshot, key, offset))


@router.delete(
    f"{_STREAM}/snapshot/{{at}}",
    dependencies=_MANAGE,
    status_code=204,
    responses=answers({204: ("The snapshot is deleted.",), 409: ("The snapshot is the latest.",)}),
)
async def remove_snapshot(
    backend: dependencies.Served, key: dependencies.StreamInPath, offset: OffsetInPath
) -> None:
    """Delete a superseded snapshot (extensions §2.4)."""
    await backend.call(snapshots.delete_snapshot, key, offset)


@router.post(
    f"{_STREAM}/snapshot/{{at}}/upload",
    dependencies=_MANAGE,
    status_code=201,
    responses=answers(
        {
            201: ("The upload's URL, and when it expires.",),
            409: ("The offset is beyond the tail.", "Stream-Next-Offset"),
        }
    ),
)
async def prepare_upload(
    backend: dependencies.Served, key: dependencies.StreamInPath, offset: OffsetInPath
) -> UploadBegun:
    """Begin the upload of a snapshot that is too large for one request, and get the URL for its bytes."""
    upload = await backend.call(snapshots.begin_upload, key, offset)
    return UploadBegun(
        upload=str(upload.id),
        url=upload.url,
        url_expires_at_ms=upload.url_expires_ms,
        publish_before_ms=upload.id.lapses_ms,
    )


@router.get(
    f"{_STREAM}/bootstrap",
    dependencies=_READ,
    responses=answers(
        {
            200: ("The snapshot and the messages behind it, as parts.", *_SNAPSHOT_HEADERS, "Stream-Closed"),
            307: ("A temporary URL of the parts.", "Location", *_SNAPSHOT_HEADERS, "Stream-Closed"),
        },
        AS_BYTES,
    ),
    response_class=Response,
)
async def get_bootstrap(
    request: Request, backend: dependencies.Served, key: dependencies.StreamInPath
) -> Response:
    """Read the latest snapshot and all messages after it in one response (extensions §3)."""
    if "live" in request.query_params:  # Extensions §3.1.
        raise Malformed("bootstrap takes no live; read on from its Stream-Next-Offset with live")
    made = await backend.call(snapshots.bootstrap, key)
    render = partial(render_bootstrap, made)
    # Rendering many parts is slow, so a thread does it.
    return await asyncio.to_thread(render) if len(made.parts) > snapshots.FEW_PARTS else render()

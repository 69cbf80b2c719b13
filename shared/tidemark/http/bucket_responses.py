"""Responses of the bucket surface. All of them describe this moment, so none is cached."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidemark.http.requests import STREAM_ROOT
from tidemark.http.responses import absolute_url, data_headers, retention_headers
from tidemark.log.records import BucketRecord, Snapshot
from tidemark.protocol.caching import NO_STORE
from tidemark.protocol.content_type import ContentType
from tidemark.protocol.etag import render_tail_etag
from tidemark.protocol.listing import ListingRequest
from tidemark.protocol.multipart import choose_boundary, render_multipart
from tidemark.protocol.offset import render_offset
from tidemark.protocol.snapshot import MAX_UPLOAD_BYTES
from tidemark.service.bootstrap import Bootstrap
from tidemark.service.list_streams import Listing
from tidemark.service.read_snapshot import SnapshotReading
from tidemark.service.upload_snapshot import Upload

_NOT_CACHED = {"Cache-Control": NO_STORE}
#: Without a type, a 204 leaves an HTTP API as application/json anyhow.
_EMPTY = _NOT_CACHED | {"Content-Type": "application/json"}


def bucket_made(request: Request, record: BucketRecord) -> Response:
    headers = {"Location": absolute_url(request)} | _bucket_headers(record)
    bucket = record.bucket
    note = f"A bucket was made; to create a stream, PUT {STREAM_ROOT}{bucket} or PUT /{bucket}/{{stream id}}"
    return JSONResponse(_bucket(record) | {"note": note}, 201, headers)


def bucket(record: BucketRecord) -> Response:
    return JSONResponse(_bucket(record), headers=_bucket_headers(record))


def _bucket(record: BucketRecord) -> dict[str, Any]:
    return {
        "bucket_id": record.bucket,
        "streams": record.streams,
        "created_at_ms": record.created_ms,
        **record.retention.named("retain_seconds", "retain_bytes"),
    }


def _bucket_headers(record: BucketRecord) -> dict[str, str]:
    return _NOT_CACHED | retention_headers(record.retention)


def listing(bucket_id: str, request: ListingRequest, found: Listing) -> Response:
    streams = [
        {
            "stream_id": head.record.key.stream_id,
            "status": "Closed" if head.tail.closed else "Open",
            "content_type": head.record.content_type.served,
            "tail_offset": head.tail.offset,
            "created_at_ms": head.record.created_ms,
            "last_write_at_ms": head.written_ms,
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


def nothing() -> Response:
    return Response(status_code=204, headers=_EMPTY)


def published(snapshot: Snapshot) -> Response:
    return Response(status_code=204, headers=_EMPTY | _snapshot_offset(snapshot))


def upload_begun(upload: Upload) -> Response:
    body = {
        "upload": str(upload.id),
        "method": "PUT",
        "url": upload.url,
        "url_expires_at_ms": upload.url_expires_ms,
        "publish_before_ms": upload.id.lapses_ms,
        "max_bytes": MAX_UPLOAD_BYTES,
    }
    return JSONResponse(body, 201, _NOT_CACHED)


def to_latest_snapshot(request: Request, snapshot: Snapshot) -> Response:
    location = f"{absolute_url(request)}/{render_offset(snapshot.offset)}"
    return _redirect(location, _snapshot_offset(snapshot))


def snapshot(reading: SnapshotReading) -> Response:
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


def bootstrap(made: Bootstrap) -> Response:
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

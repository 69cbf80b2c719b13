"""Reading a request on the bucket surface."""

from __future__ import annotations

from starlette.requests import Request

from tidemark.http.requests import (
    MAX_BODY_BYTES,
    STREAM_ROOT,
    parse_body_type,
    parse_limits,
    read_body,
    single,
    single_header,
)
from tidemark.protocol import content_type
from tidemark.protocol.content_type import parse_content_type
from tidemark.protocol.errors import Malformed, PayloadTooLarge
from tidemark.protocol.listing import ListingRequest, parse_listing
from tidemark.protocol.retention import AGE_HEADER, SIZE_HEADER, Retention
from tidemark.protocol.snapshot import parse_snapshot_offset, parse_upload_id
from tidemark.service.publish_snapshot import PublishRequest

_WAY_OUT = "; POST to this path followed by /upload says where to put a larger snapshot"


def parse_list(request: Request) -> ListingRequest:
    return parse_listing(single(request, "prefix"), single(request, "after"), single(request, "limit"))


async def parse_publish(request: Request, offset_token: str) -> PublishRequest:
    offset = parse_snapshot_offset(offset_token)
    upload = parse_upload_id(single_header(request, "Snapshot-Upload"))
    body_type = parse_body_type(request) or parse_content_type(content_type.DEFAULT)
    try:
        body = await read_body(request)
    except PayloadTooLarge:
        raise PayloadTooLarge(MAX_BODY_BYTES, _WAY_OUT) from None
    if upload is not None and body:
        raise Malformed("A publish that names a Snapshot-Upload has no body of its own")
    return PublishRequest(offset, body_type, body, upload)


async def parse_bucket_creation(request: Request, bucket: str) -> Retention:
    """A bucket takes no body, and of a stream's headers only the limits, which its streams get. A request
    with other headers was meant for a stream: a forgotten `/v1/stream` does not create a bucket. So was one
    with a content type from `fetch`, which the official clients and their command line send. Raises
    Malformed."""
    body_type = parse_body_type(request)
    limits = {AGE_HEADER.lower(), SIZE_HEADER.lower()}
    is_typed = body_type is not None and (not body_type.is_json or "sec-fetch-mode" in request.headers)
    is_for_stream = is_typed or any(
        name.startswith("stream-") and name not in limits for name in request.headers
    )
    if is_for_stream or await read_body(request):
        raise Malformed(
            f"/{bucket} is a bucket's path, and a bucket has no body, no Content-Type, and none of a "
            f"stream's headers but {AGE_HEADER} and {SIZE_HEADER}; "
            f"to create a stream, PUT {STREAM_ROOT}{bucket} or PUT /{bucket}/{{stream id}}"
        )
    return parse_limits(request)


def check_bootstrap(request: Request) -> None:
    """Extensions §3.1: it is answered once, and there is nothing to wait for."""
    if "live" in request.query_params:
        raise Malformed("bootstrap is answered once; read on from its Stream-Next-Offset with live")

"""The handlers of buckets, snapshots and the bootstrap.

Imported by the first such request: appends and reads, which are most of
what an environment serves, do without it.
"""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from tidemark.http import bucket_responses
from tidemark.http.backend import backend_of
from tidemark.http.bucket_requests import check_bootstrap, parse_bucket_creation, parse_list, parse_publish
from tidemark.http.requests import parse_place
from tidemark.protocol.snapshot import parse_snapshot_offset
from tidemark.service import buckets
from tidemark.service.bootstrap import FEW_PARTS, bootstrap
from tidemark.service.list_streams import list_streams
from tidemark.service.publish_snapshot import publish_snapshot
from tidemark.service.read_snapshot import delete_snapshot, latest_snapshot, read_snapshot
from tidemark.service.upload_snapshot import begin_upload


async def create_bucket(request: Request) -> Response:
    """Create a bucket (extensions §1.2)."""
    backend, place = backend_of(request), parse_place(request)
    retention = await parse_bucket_creation(request, place.bucket)
    made = await backend.run(lambda: buckets.create_bucket(backend.stores, place.bucket, retention))
    return bucket_responses.bucket_made(request, made)


async def describe_bucket(request: Request) -> Response:
    """A bucket (extensions §1.3)."""
    backend, place = backend_of(request), parse_place(request)
    return bucket_responses.bucket(
        await backend.run(lambda: buckets.describe_bucket(backend.stores, place.bucket))
    )


async def remove_bucket(request: Request) -> Response:
    """Delete an empty bucket (extensions §1.5)."""
    backend, place = backend_of(request), parse_place(request)
    await backend.run(lambda: buckets.delete_bucket(backend.stores, place.bucket))
    return bucket_responses.nothing()


async def list_bucket(request: Request) -> Response:
    """The streams of a bucket, in the order of their names' bytes (extensions §1.4)."""
    backend, place = backend_of(request), parse_place(request)
    listing_request = parse_list(request)
    found = await backend.run(lambda: list_streams(backend.stores, place.bucket, listing_request))
    return bucket_responses.listing(place.bucket, listing_request, found)


async def redirect_to_latest(request: Request) -> Response:
    """Where the latest snapshot is (extensions §2.2)."""
    backend, place = backend_of(request), parse_place(request)
    latest = await backend.run(lambda: latest_snapshot(backend.stores, place.key))
    return bucket_responses.to_latest_snapshot(request, latest)


async def put_snapshot(request: Request) -> Response:
    """Publish a snapshot; what lies before it can be read no more (extensions §2.1)."""
    backend, place = backend_of(request), parse_place(request)
    publish_request = await parse_publish(request, place.offset_token)
    published = await backend.run(lambda: publish_snapshot(backend.stores, place.key, publish_request))
    return bucket_responses.published(published)


async def get_snapshot(request: Request) -> Response:
    """A snapshot (extensions §2.3)."""
    backend, place = backend_of(request), parse_place(request)
    offset = parse_snapshot_offset(place.offset_token)
    reading = await backend.run(lambda: read_snapshot(backend.stores, place.key, offset))
    return bucket_responses.snapshot(reading)


async def remove_snapshot(request: Request) -> Response:
    """Delete a superseded snapshot (extensions §2.4)."""
    backend, place = backend_of(request), parse_place(request)
    offset = parse_snapshot_offset(place.offset_token)
    await backend.run(lambda: delete_snapshot(backend.stores, place.key, offset))
    return bucket_responses.nothing()


async def prepare_upload(request: Request) -> Response:
    """Where to put a snapshot that is too large for a request."""
    backend, place = backend_of(request), parse_place(request)
    offset = parse_snapshot_offset(place.offset_token)
    upload = await backend.run(lambda: begin_upload(backend.stores, place.key, offset))
    return bucket_responses.upload_begun(upload)


async def get_bootstrap(request: Request) -> Response:
    """The latest snapshot and the messages since, in one answer (extensions §3)."""
    backend, place = backend_of(request), parse_place(request)
    check_bootstrap(request)
    made = await backend.run(lambda: bootstrap(backend.stores, place.key))
    render = partial(bucket_responses.bootstrap, made)
    # Rendering many parts takes long, so a thread does it.
    return await asyncio.to_thread(render) if len(made.parts) > FEW_PARTS else render()

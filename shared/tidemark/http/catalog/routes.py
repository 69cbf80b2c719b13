"""The handlers of listings, stats and start points. The protocol's own rules say what is wrong with a
parameter, with the protocol's own errors."""

from __future__ import annotations

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from tidemark.http.backend import backend_of
from tidemark.http.catalog import models, render
from tidemark.http.error_handlers import HAS_TOKEN
from tidemark.http.requests import ACCESS, header, parse_stream_parameter, singles
from tidemark.protocol.authorization import EVERYTHING, Access, render_scopes
from tidemark.protocol.caching import NO_STORE
from tidemark.protocol.errors import Malformed
from tidemark.protocol.etag import etag_matches
from tidemark.protocol.listing import ListingRequest, parse_plain_listing
from tidemark.protocol.offset import NOW, parse_read_from
from tidemark.protocol.start_point import parse_start_point
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.service.buckets import list_buckets
from tidemark.service.list_forks import list_forks
from tidemark.service.list_streams import list_streams
from tidemark.service.start_point import find_start
from tidemark.service.stats import load_stats
from tidemark.service.times import load_times


def answer(model: BaseModel) -> Response:
    """It describes this moment, so no cache keeps it."""
    body = model.model_dump_json(by_alias=True)
    return Response(body, media_type="application/json", headers={"Cache-Control": NO_STORE})


def parse_page(request: Request) -> ListingRequest:
    asked = singles(request)
    return parse_plain_listing(asked.get("prefix"), asked.get("after"), asked.get("limit"))


async def plain_streams(request: Request) -> Response:
    """List the streams of the plain surface."""
    backend, asked = backend_of(request), parse_page(request)
    found = await backend.run(lambda: list_streams(backend.stores, PLAIN_BUCKET, asked))
    return answer(render.streams(asked, found))


async def all_buckets(request: Request) -> Response:
    """List the buckets."""
    backend, asked = backend_of(request), parse_page(request)
    return answer(render.buckets(asked, await backend.run(lambda: list_buckets(backend.stores, asked))))


async def stream_stats(request: Request) -> Response:
    """What is known of a stream: sizes, times, producers, forks, snapshot."""
    backend, key = backend_of(request), parse_stream_parameter(singles(request).get("stream"))
    found = await backend.run(lambda: load_stats(backend.stores, key))
    return answer(render.stats(found, request.scope.get(ACCESS, EVERYTHING)))


async def stream_forks(request: Request) -> Response:
    """The forks that were made of a stream."""
    backend, key = backend_of(request), parse_stream_parameter(singles(request).get("stream"))
    found = await backend.run(lambda: list_forks(backend.stores, key))
    return answer(render.forks(found, request.scope.get(ACCESS, EVERYTHING)))


async def start_point(request: Request) -> Response:
    """The offset of the last messages, or of what was written from a time on."""
    backend, query = backend_of(request), singles(request)
    key = parse_stream_parameter(query.get("stream"))
    asked = parse_start_point(query.get("last"), query.get("from"))
    return answer(render.start_point(await backend.run(lambda: find_start(backend.stores, key, asked))))


async def append_times(request: Request) -> Response:
    """When the messages of a page were appended."""
    backend, query = backend_of(request), singles(request)
    key, offset = parse_stream_parameter(query.get("stream")), query.get("offset")
    start = parse_read_from(offset)
    if start is None or start == NOW:
        raise Malformed(
            f"offset must be -1, or a Stream-Next-Offset that this server gave, got {offset!r:.80}"
        )
    found = await backend.run(lambda: load_times(backend.stores, key, start))
    headers = render.times_headers(found)
    if etag_matches(header(request, "If-None-Match"), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(render.times(found), headers=headers, media_type="application/json")


async def me(request: Request) -> Response:
    """What this request's token may do."""
    singles(request)
    is_on = backend_of(request).settings.authorization.is_on
    # On an open server, every client may do everything.
    access: Access = request.scope.get(ACCESS, EVERYTHING)
    return answer(
        models.Me(authorization=is_on, token=HAS_TOKEN in request.scope, scopes=render_scopes(access))
    )

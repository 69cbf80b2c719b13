"""The routes. FastAPI documents them; what is wrong with a parameter is said by the
protocol's own rules, with the protocol's own errors."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response

from tidemark.http.backend import backend_of
from tidemark.http.catalog import models, render
from tidemark.http.control_paths import FORKS, LIST_BUCKETS, LIST_STREAMS, ME, START_POINT, STATS, TIMES
from tidemark.http.error_handlers import HAS_TOKEN
from tidemark.http.requests import ACCESS, header, parse_stream_parameter, single
from tidemark.protocol.authorization import EVERYTHING, Access, render_scopes
from tidemark.protocol.caching import NO_STORE
from tidemark.protocol.errors import Malformed
from tidemark.protocol.etag import etag_matches
from tidemark.protocol.listing import parse_plain_listing
from tidemark.protocol.offset import NOW, parse_read_from
from tidemark.protocol.start_point import parse_start_point
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.service.buckets import list_buckets
from tidemark.service.list_forks import list_forks
from tidemark.service.list_streams import list_streams
from tidemark.service.start_point import find_start
from tidemark.service.stats import load_stats
from tidemark.service.times import load_times


async def checked(request: Request, response: Response) -> None:
    """For every route: a parameter that is given twice means nothing, and no cache keeps the answer."""
    for name in request.query_params:
        single(request, name)
    response.headers["Cache-Control"] = NO_STORE


def fault(meaning: str) -> dict[str, Any]:
    return {"model": models.Error, "description": meaning}


_FAULTS: Final[dict[int | str, dict[str, Any]]] = {
    400: fault("A parameter is wrong."),
    401: fault("A token is needed, or it is not valid."),
    403: fault("The request did not come through the distribution in front."),
    404: fault("It does not exist, or the token has no right to it."),
    429: fault("Too many requests."),
    500: fault("An error of the server."),
    503: fault("Storage does not answer."),
}
#: A stream that only its forks keep.
_STREAM_FAULTS: Final = _FAULTS | {410: fault("The stream was deleted, and forks of it still live.")}
_READ: Final = {"security": [{"bearer": ["read"]}, {}]}
_ANYBODY: Final[dict[str, Any]] = {"security": [{"bearer": []}, {}]}

router = APIRouter(dependencies=[Depends(checked)], tags=["catalog"])

Prefix = Annotated[str | None, Query(description="Only names that begin like this.")]
After = Annotated[str | None, Query(description="`next_cursor` of the page before.")]
Limit = Annotated[
    str | None,
    Query(
        description="1 to 1000.", examples=["50"], json_schema_extra={"pattern": "^([1-9][0-9]{0,2}|1000)$"}
    ),
]
StreamPath = Annotated[
    str | None,
    Query(description="The stream's path, as in its URL.", examples=["/v1/stream/chat/42"]),
]


# The parameters are declared for the document, and read from the request as they were sent.


@router.get(
    LIST_STREAMS,
    operation_id="listPlainStreams",
    summary="List the streams of the plain surface",
    responses=_FAULTS,
    openapi_extra=_READ,
)
async def streams(
    request: Request, prefix: Prefix = None, after: After = None, limit: Limit = None
) -> models.StreamListingModel:
    backend, asked = backend_of(request), parse_plain_listing(prefix, after, limit)
    found = await backend.run(lambda: list_streams(backend.stores, PLAIN_BUCKET, asked))
    return render.streams(asked, found)


@router.get(
    LIST_BUCKETS,
    operation_id="listBuckets",
    summary="List the buckets",
    responses=_FAULTS,
    openapi_extra=_READ,
)
async def buckets(
    request: Request, prefix: Prefix = None, after: After = None, limit: Limit = None
) -> models.BucketListingModel:
    backend, asked = backend_of(request), parse_plain_listing(prefix, after, limit)
    return render.buckets(asked, await backend.run(lambda: list_buckets(backend.stores, asked)))


@router.get(
    STATS,
    operation_id="streamStats",
    summary="What is known of a stream: sizes, times, producers, forks, snapshot",
    responses=_STREAM_FAULTS,
    openapi_extra=_READ,
)
async def stats(request: Request, stream: StreamPath = None) -> models.Stats:
    backend, key = backend_of(request), parse_stream_parameter(stream)
    return render.stats(await backend.run(lambda: load_stats(backend.stores, key)))


@router.get(
    FORKS,
    operation_id="listForks",
    summary="The forks that were made of a stream",
    responses=_FAULTS,
    openapi_extra=_READ,
)
async def forks(request: Request, stream: StreamPath = None) -> models.ForksModel:
    backend, key = backend_of(request), parse_stream_parameter(stream)
    found = await backend.run(lambda: list_forks(backend.stores, key))
    return render.forks(found, request.scope.get(ACCESS, EVERYTHING))


@router.get(
    START_POINT,
    operation_id="startPoint",
    summary="The offset of the last messages, or of what was written from a time on",
    responses=_STREAM_FAULTS,
    openapi_extra=_READ,
)
async def start(
    request: Request,
    stream: StreamPath = None,
    last: Annotated[str | None, Query(description="A number of messages.", examples=["100"])] = None,
    written_from: Annotated[
        str | None, Query(alias="from", description="RFC 3339.", examples=["2026-11-21T10:00Z"])
    ] = None,
) -> models.StartPointModel:
    backend, key = backend_of(request), parse_stream_parameter(stream)
    asked = parse_start_point(last, written_from)
    return render.start_point(await backend.run(lambda: find_start(backend.stores, key, asked)))


@router.get(
    TIMES,
    operation_id="appendTimes",
    summary="When the messages of a page were appended",
    response_model=models.TimesModel,
    responses=_STREAM_FAULTS | {304: {"description": "As the entity tag in `If-None-Match` says."}},
    openapi_extra=_READ,
)
async def times(
    request: Request,
    stream: StreamPath = None,
    offset: Annotated[
        str | None, Query(description="Of the page, as in its read.", examples=["0000000000000042"])
    ] = None,
) -> Response:
    backend, key = backend_of(request), parse_stream_parameter(stream)
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


@router.get(
    ME,
    operation_id="me",
    summary="What this request's token may do",
    responses={status: _FAULTS[status] for status in (400, 401, 403, 429, 500, 503)},
    openapi_extra=_ANYBODY,
)
async def me(request: Request) -> models.Me:
    is_on = backend_of(request).settings.authorization.is_on
    # Where nothing is checked, everybody may do everything.
    access: Access = request.scope.get(ACCESS, EVERYTHING)
    return models.Me(authorization=is_on, token=HAS_TOKEN in request.scope, scopes=render_scopes(access))

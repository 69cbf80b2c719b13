"""Bulk reads: a page of each of many streams in one response, for readers with little news in many streams. A
response ends before it is too large, and may then have fewer pages than were asked for."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Security
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr
from starlette.requests import Request
from starlette.responses import Response

from tidemark.http import dependencies
from tidemark.http.catalog import PageOffset, Path, TimesModel, shown_times
from tidemark.http.error_handlers import HAS_TOKEN, message_of
from tidemark.http.requests import parse_page_start, parse_stream_parameter
from tidemark.http.responses import page_etag
from tidemark.protocol import errors
from tidemark.protocol.messages import render_body
from tidemark.protocol.offset import render_offset
from tidemark.service.catalog import times_of
from tidemark.service.read import Reading, read_each

router: Final = APIRouter(tags=["catalog"])
MAX_READS: Final = 1_000
#: The most bytes of a response, so that its base64 fits a Lambda response of 6 MB.
ANSWER_BYTES: Final = 4 * 1024 * 1024
#: The size of a page. A page with a larger message has this message alone.
_EACH_BYTES: Final = 256 * 1024
#: Pages that are in memory at once, beside the response. Other requests have their turn in between.
_AT_ONCE: Final = 16
_NEEDS_TOKEN: Final = errors.Unauthorized("A bearer token is needed", token_given=False)


class AskedRead(BaseModel):
    stream: Annotated[StrictStr, Path]
    offset: Annotated[StrictStr, Field(description="As in a read, without `now`.")] = "-1"


class AskedReads(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"reads": [{"stream": "/v1/stream/chat/42"}]}]})

    reads: Annotated[list[AskedRead], Field(min_length=1, max_length=MAX_READS)]
    times: Annotated[StrictBool, Field(description="Whether pages have the times of their messages.")] = False


class PageModel(BaseModel):
    """A page of JSON has `messages`, another page `base64`. A refused read has `status` and `error` alone."""

    status: Annotated[int, Field(description="The status that a read of this stream has.")]
    error: str | None = None
    content_type: str | None = None
    etag: Annotated[str | None, Field(description="The page's entity tag, as of a read.")] = None
    offset: Annotated[PageOffset | None, Field(description="Where the page begins.")] = None
    next_offset: PageOffset | None = None
    up_to_date: bool | None = None
    closed: bool | None = None
    messages: list[Any] | None = None
    base64: str | None = None
    times: TimesModel | None = None


class PagesModel(BaseModel):
    """The pages of the first reads, in order. Ask again for the rest."""

    pages: list[PageModel]


@router.post(
    "/v1/read",
    dependencies=[Security(dependencies.ANY_TOKEN, scopes=["read"])],
    response_model=PagesModel,
)
async def read_many(
    request: Request, backend: dependencies.Served, access: dependencies.Granted, asked: AskedReads
) -> Response:
    """Read a page of each of many streams, of up to 256 KB, in a response of up to 4 MB."""
    reads = [(parse_stream_parameter(each.stream), parse_page_start(each.offset)) for each in asked.reads]
    pages, has_token = list[bytes](), HAS_TOKEN in request.scope
    refusal = errors.StreamNotFound() if has_token else _NEEDS_TOKEN
    for begin in range(0, len(reads), _AT_ONCE):
        some = [(access.may_read(each[0]), each) for each in reads[begin : begin + _AT_ONCE]]
        allowed = [each for may_read, each in some if may_read]
        found = iter(await backend.call(read_each, allowed, _EACH_BYTES) if allowed else ())
        for may_read, _ in some:
            reading = next(found) if may_read else refusal
            pages.append(render_page(reading, times=asked.times, has_token=has_token))
        if sum(map(len, pages)) > ANSWER_BYTES:
            break
    while sum(map(len, pages)) > ANSWER_BYTES and len(pages) > 1:
        pages.pop()
    return Response(b'{"pages":[%b]}' % b",".join(pages), media_type="application/json")


def render_page(reading: Reading | errors.ProtocolError, *, times: bool, has_token: bool) -> bytes:
    """Render `PageModel` as JSON, with JSON messages as they are stored."""
    if isinstance(reading, errors.ProtocolError):
        return _refused(reading.status, message_of(reading, has_token=has_token))
    record, page = reading.record, reading.page
    body = render_body(record.content_type, *page.pieces)
    is_json = record.content_type.is_json
    shown: dict[str, Any] = {
        "status": 200,
        "content_type": record.content_type.served,
        "etag": page_etag(reading),
        "offset": render_offset(page.start),
        "next_offset": render_offset(page.end),
        "up_to_date": page.up_to_date,
        "closed": page.closed,
        **({"messages": orjson.Fragment(body)} if is_json else {"base64": b64encode(body).decode()}),
    }
    if times:
        shown["times"] = shown_times(times_of(record, page))
    rendered = orjson.dumps(shown)
    if len(rendered) > ANSWER_BYTES:
        return _refused(413, f"The page has {len(body)} bytes, too many for a bulk read: GET the stream here")
    return rendered


def _refused(status: int, error: str) -> bytes:
    return orjson.dumps({"status": status, "error": error})

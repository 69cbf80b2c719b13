"""Renders the results of the operations as responses: status, headers and body."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlencode
from zlib import crc32

from starlette.requests import Request
from starlette.responses import Response

from tidemark.http.requests import EDGE_HOST, ReadRequest, header, url_path
from tidemark.log.records import StreamRecord
from tidemark.log.tails import StreamHead
from tidemark.protocol import caching
from tidemark.protocol.append import Kind, Outcome
from tidemark.protocol.compaction import COMPACTION_HEADERS, Compaction
from tidemark.protocol.expiry import AGE_HEADER, SIZE_HEADER, Retention, deadline_ms
from tidemark.protocol.messages import ContentType, render_body
from tidemark.protocol.offset import EARLIEST, NOW, render_offset
from tidemark.protocol.where import MessageFilter
from tidemark.service.append import AppendRequest
from tidemark.service.create import Created
from tidemark.service.read import Reading

#: A valid X-Forwarded-Prefix: the path below which a proxy serves this server.
_PREFIX: Final = re.compile(r"(/[\w.~%-]+)+/?", re.ASCII)
#: The content type of responses without a body: an HTTP API would add this type anyway.
EMPTY: Final = {"Content-Type": "application/json"}
_EVENTS: Final = ContentType("text/event-stream", "text/event-stream")


def created(request: Request, made: Created) -> Response:
    """Render 201 for a new stream, 200 for an existing stream with the same settings (§5.1)."""
    headers = _head_headers(made.head)
    if made.is_new:
        headers["Location"] = absolute_url(request)
    return Response(status_code=201 if made.is_new else 200, headers=headers)


def absolute_url(request: Request) -> str:
    """The request's URL as the client sent it to the proxies in front."""
    return root_url(request) + url_path(request)


def root_url(request: Request) -> str:
    forwarded = header(request, "X-Forwarded-Proto")
    scheme = (
        forwarded if forwarded in {"http", "https"} else "https" if "aws.event" in request.scope else "http"
    )
    host = request.scope.get(EDGE_HOST) or header(request, "Host") or "localhost"
    prefix = header(request, "X-Forwarded-Prefix") or ""
    return f"{scheme}://{host}{prefix.rstrip('/') if _PREFIX.fullmatch(prefix) else ''}"


def appended(request: AppendRequest, outcome: Outcome) -> Response:
    """Render 204, or 200 for a producer's new data (§5.2.1)."""
    headers = {
        "Stream-Next-Offset": render_offset(outcome.next_offset),
        "ETag": caching.render_tail_etag(outcome.incarnation, outcome.next_offset, closed=outcome.closed),
    }
    if outcome.closed:
        headers["Stream-Closed"] = "true"
    if request.content_type is not None:
        headers["Content-Type"] = request.content_type.value
    if request.claim is not None and outcome.producer is not None:
        headers["Producer-Epoch"] = str(outcome.producer.epoch)
        headers["Producer-Seq"] = str(outcome.producer.seq)
    is_new_data = outcome.kind is Kind.APPENDED and request.claim is not None and request.body
    return Response(status_code=200 if is_new_data else 204, headers=headers)


def metadata(known: StreamHead) -> Response:
    """Render the response to HEAD (§5.5). `Stream-TTL` is the configured time, not the remaining time."""
    expiry = known.record.expiry
    headers = _head_headers(known) | {"Cache-Control": caching.NO_STORE}
    if expiry.ttl_seconds is not None:
        headers["Stream-TTL"] = str(expiry.ttl_seconds)
    if expiry.expires_at is not None:
        headers["Stream-Expires-At"] = expiry.expires_at
    headers |= setting_headers(known.record.retention, known.record.compaction)
    if known.record.retained:
        headers["Stream-Retained-Offset"] = render_offset(known.record.retained)
    if known.record.compacted:
        headers["Stream-Compacted-Offset"] = render_offset(known.record.compacted)
    if known.record.snapshot is not None:
        headers["Stream-Snapshot-Offset"] = render_offset(known.record.snapshot.offset)
    response = Response(headers=headers)
    del response.headers["Content-Length"]  # The length of the body of GET is unknown here.
    return response


def setting_headers(retention: Retention, compaction: Compaction | None) -> dict[str, str]:
    """The headers of a stream's settings, or of the settings of a bucket's streams."""
    settings: dict[str, str | int] = {**retention.named(AGE_HEADER, SIZE_HEADER)}
    if compaction is not None:
        settings |= compaction.named(*COMPACTION_HEADERS)
    return {name: str(value) for name, value in settings.items()}


def data_headers(content_type: ContentType) -> dict[str, str]:
    """The headers of each response with bytes from a client, and of a 304, because a browser updates its
    cached headers from it. `sandbox`: opened as a page, the bytes have no origin, so scripts do not run, and
    the console's data is out of reach."""
    headers = {"Content-Type": content_type.served, "Content-Security-Policy": "sandbox"}
    if content_type.is_active:
        headers["Content-Disposition"] = "attachment"
    return headers


def _head_headers(head: StreamHead) -> dict[str, str]:
    """The headers of a stream's current tail."""
    record, tail = head.record, head.tail
    headers = {
        "Content-Type": record.content_type.served,
        "Stream-Next-Offset": render_offset(tail.offset),
        "ETag": caching.render_tail_etag(record.incarnation, tail.offset, closed=tail.closed),
    }
    if tail.closed:
        headers["Stream-Closed"] = "true"
    return headers


def caught_up(request: ReadRequest, reading: Reading, now_ms: int) -> Response:
    """Render a catch-up read (§5.6): the page, or 304 if the client has this page already."""
    cursor = caching.decide_catch_up_cursor(request.cursor, reading.record.incarnation)
    headers = _reading_headers(request, reading, now_ms, cursor, closed=reading.page.closed)
    if request.read_from != NOW or request.last is not None:
        headers["ETag"] = page_etag(reading, request.where)
        if caching.etag_matches(request.if_none_match, headers["ETag"]):
            return Response(status_code=304, headers=headers)
    return Response(render_body(reading.record.content_type, *reading.page.pieces), headers=headers)


def polled(request: ReadRequest, reading: Reading, now_ms: int) -> Response:
    """Render a long-poll (§5.7): 200 with data, 204 without."""
    cursor = caching.decide_cursor(request.cursor, now_ms, reading.record.incarnation)
    headers = _reading_headers(request, reading, now_ms, cursor, closed=False)
    pieces = reading.page.pieces
    if reading.page.up_to_date and not any(pieces):
        return Response(status_code=204, headers=headers)
    if request.read_from != NOW:
        headers["ETag"] = page_etag(reading, request.where)
    return Response(render_body(reading.record.content_type, *pieces), headers=headers)


def _reading_headers(
    request: ReadRequest, reading: Reading, now_ms: int, cursor: int, *, closed: bool
) -> dict[str, str]:
    """The headers of a read. `closed`: the response states the stream's end, which is final, so caches may
    keep the response even without data."""
    record, page = reading.record, reading.page
    headers = data_headers(record.content_type) | _beginning(request, record)
    headers["Stream-Next-Offset"] = render_offset(page.end)
    if request.last is not None:
        headers["Stream-Start-Offset"] = render_offset(page.start)
    if page.closed:
        headers["Stream-Closed"] = "true"
    if closed or not page.closed:  # Omitted only from a live read at the end of a closed stream.
        headers["Stream-Cursor"] = str(cursor)
    if page.up_to_date:
        headers["Stream-Up-To-Date"] = "true"
    ends_ms = deadline_ms(record.expiry, max(record.used_ms, page.written_ms))
    headers["Cache-Control"] = caching.decide_cache_control(
        has_data=page.has_data,
        closed=closed,
        from_now=request.read_from == NOW,
        is_bound=caching.is_of(request.cursor, record.incarnation),
        life_ms=None if ends_ms is None else max(0, ends_ms - now_ms),
    )
    return headers


def _beginning(request: ReadRequest, record: StreamRecord) -> dict[str, str]:
    """For a read from offset -1 of a stream whose first messages are gone: the offset at which it begins."""
    if request.read_from != EARLIEST or not record.retained:
        return {}
    return {"Stream-Retained-Offset": render_offset(record.retained)}


def page_etag(reading: Reading, where: MessageFilter | None = None) -> str:
    page, crc = reading.page, reading.page.crc
    if where is not None:
        crc = crc32(where.text.encode(), crc or 0)
    return caching.render_etag(reading.record.incarnation, page.start, page.end, closed=page.closed, crc=crc)


def event_stream_headers(request: ReadRequest, reading: Reading) -> dict[str, str]:
    """The headers of an event stream. The ETag belongs to the first page, and names the incarnation.
    X-Accel-Buffering keeps nginx from holding events back until the end of the response."""
    record = reading.record
    headers = (
        data_headers(_EVENTS)
        | _beginning(request, record)
        | {
            "ETag": page_etag(reading, request.where),
            "Cache-Control": caching.EVENT_STREAM,
            "X-Accel-Buffering": "no",
        }
    )
    if not record.content_type.is_text:
        headers["Stream-SSE-Data-Encoding"] = "base64"
    return headers


def resumed(request: Request, last: str) -> Response:
    """Redirect an EventSource to the URL whose offset is the id of its last event, so that caches store that
    response under another key."""
    query = [(name, value) for name, value in request.query_params.multi_items() if name != "offset"]
    location = f"?{urlencode([*query, ('offset', last)])}"
    return Response(status_code=307, headers={"Location": location, "Cache-Control": caching.NO_STORE})

"""What a request asks for: from method, path and headers to the rights that it takes.

Whatever is not named here is not served where authorization is on: a new route has to say
here what it takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from tidemark.http.metrics import METRICS_PATH
from tidemark.http.requests import STREAM_ROOT, parse_fork, request_path
from tidemark.protocol.authorization import Demand, Right, Target
from tidemark.protocol.errors import Malformed, Refused, StreamNotFound
from tidemark.protocol.stream_key import parse_plain_path

#: Says nothing about any stream.
OPEN_PATHS: Final = frozenset({"/v1/health", "/v1/openapi.json"})
#: The one name under a bucket that is no stream: its listing.
LISTING: Final = "streams"
#: As the service says it, word for word.
_NO_SOURCE: Final = "The source stream does not exist; Stream-Forked-From must name one"

_READ: Final = frozenset({Right.READ})
_WRITE: Final = frozenset({Right.WRITE})
_MANAGE: Final = frozenset({Right.MANAGE})
#: PUT changes no stream that exists: who may write one may also begin it, as agents do that
#: own a prefix, and who manages streams may set them up for others to write.
_CREATE: Final = frozenset({Right.WRITE, Right.MANAGE})

_STREAM: Final = {"GET": _READ, "HEAD": _READ, "POST": _WRITE, "PUT": _CREATE, "DELETE": _MANAGE}


def demands_of(request: Request) -> Iterator[Demand]:
    """All of them have to be met, in this order. Raises StreamNotFound where nothing can
    be, Malformed for a name that cannot be."""
    path, encoded = request_path(request.scope)
    if path == METRICS_PATH:
        yield Demand(Target(None), _READ)
    elif path.startswith(STREAM_ROOT):
        key = parse_plain_path(path.removeprefix(STREAM_ROOT), encoded=encoded)
        yield Demand(Target(key.bucket, key.stream_id), _STREAM.get(request.method, _MANAGE))
    else:
        yield _in_bucket(request.method, path.removeprefix("/"), encoded=encoded)
    yield from _source(request)


def _in_bucket(method: str, path: str, *, encoded: bool) -> Demand:
    """`/{bucket}`, `/{bucket}/{stream}` and what hangs below a stream: snapshots decide how
    far back it can be read, so they are managed, not written."""
    segments = [_decode(segment) if encoded else segment for segment in path.split("/")]
    bucket, stream_id = segments[0], segments[1] if len(segments) > 1 else None
    if not bucket or bucket == "v1":
        raise StreamNotFound(f"Nothing is here; streams live under {STREAM_ROOT}")
    below = _READ if method in {"GET", "HEAD"} else _MANAGE
    if stream_id is None or stream_id == LISTING:
        return Demand(Target(bucket), below)
    return Demand(Target(bucket, stream_id), below if len(segments) > 2 else _STREAM.get(method, _MANAGE))


def _decode(segment: str) -> str:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise Malformed("Names must be percent-encoded UTF-8") from None


def _source(request: Request) -> Iterator[Demand]:
    """A fork reads its source. What is wrong with the headers is said by who creates it."""
    if request.method != "PUT":
        return
    try:
        fork = parse_fork(request)
    except Refused:
        return
    if fork is not None:
        yield Demand(Target(fork.source.bucket, fork.source.stream_id), _READ, absent=_NO_SOURCE)

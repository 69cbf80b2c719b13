"""Names of streams and buckets, decoded once, and their listings (extensions §1).

On the plain surface a name is the path below the root. In a bucket a name has no slash, so the rest of a path
can only be a resource of the stream: `snapshot` and `bootstrap` stay legal names of streams.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from tidemark.protocol.errors import Malformed, StreamNotFound

#: The plain surface `/v1/stream/{path}`; a bucket id has at least four characters.
PLAIN_BUCKET: Final = "v1"
#: DynamoDB allows a sort key of 1,024 bytes; the rest is our prefix.
MAX_STREAM_ID_BYTES: Final = 1000
#: The first segment of the protocol's control paths (§6).
RESERVED_SEGMENT: Final = "__ds"
#: The most bytes of a stream id, and of `{bucket}/{stream id}` together, in UTF-8.
MAX_KEY_BYTES: Final = 122
#: Sorts after every other character.
LAST_CHARACTER: Final = "\U0010ffff"

_BUCKET_ID: Final = re.compile(r"[a-z0-9_-]{4,64}", re.ASCII)
#: `/{bucket}/streams` lists the bucket's streams, so no stream may have this name.
LISTING: Final = "streams"
#: A percent sign that encodes nothing.
_BARE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
#: ASCII characters that no name may have. Every other character is legal, even if it is invisible.
CONTROL_CHARACTER: Final = re.compile("[\x00-\x1f\x7f]")
#: Characters that change the direction of the text around a name, or make two names look the same.
_DIRECTION: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
#: Characters that make a path ambiguous after a gateway has decoded it: `%` and `?` were encoded twice, and
#: U+FFFD stands for any bytes that are not UTF-8.
_AMBIGUOUS: Final = re.compile("[%?\ufffd]")


@dataclass(frozen=True, slots=True)
class StreamKey:
    """The key of a stream: a bucket, and a name in it."""

    bucket: str
    stream_id: str


def parse_plain_path(path: str, *, encoded: bool) -> StreamKey:
    """Return the stream at `path`, the part after `/v1/stream/`.

    `encoded`: the path is still percent-encoded; some gateways decode it earlier. Raises Malformed for an
    ambiguous name, StreamNotFound for the reserved control paths.
    """
    segments = [parse_segment(segment, encoded=encoded) for segment in path.split("/")]
    for segment in segments:
        if segment in {"", ".", ".."}:
            raise Malformed("Stream name must not have empty, '.' or '..' segments, so no '/' at its end")
        if "/" in segment or "\0" in segment:
            raise Malformed("Stream name must not contain an encoded '/' or NUL")
        if CONTROL_CHARACTER.search(segment):
            raise Malformed("Stream name must not contain control characters")
    stream_id = "/".join(segments)
    if len(stream_id.encode()) > MAX_STREAM_ID_BYTES:
        raise Malformed(f"Stream name is too long: at most {MAX_STREAM_ID_BYTES} bytes in UTF-8")
    if segments[0] == RESERVED_SEGMENT:
        raise StreamNotFound(f"Paths under {RESERVED_SEGMENT} are reserved and hold no streams")
    return StreamKey(PLAIN_BUCKET, stream_id)


def check_new_name(key: StreamKey) -> None:
    """Raise Malformed for a name that a new stream may not have. Streams of earlier releases may have one."""
    if key.bucket == PLAIN_BUCKET and (found := _DIRECTION.intersection(key.stream_id)):
        raise Malformed(
            f"Stream name must not contain U+{ord(min(found)):04X}, which turns the text around it"
        )


def parse_segment(segment: str, *, encoded: bool) -> str:
    """Decode one segment of a path. Raises Malformed for invalid UTF-8 or escapes, or an ambiguous name."""
    if not encoded:
        if found := _AMBIGUOUS.search(segment):
            raise Malformed(
                f"A name with {found[0]!r} cannot be used at this address: the gateway in front decodes the "
                "path, so the name may have been another one; use the distribution's address"
            )
        return segment
    if _BARE_PERCENT.search(segment):
        raise Malformed(
            "A percent sign in a path must begin an encoded byte such as %20; write %25 for itself"
        )
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise Malformed("Stream name must be percent-encoded UTF-8") from None


def parse_bucket_stream(path: str, *, encoded: bool) -> StreamKey | None:
    """Return the stream at `path`, the part after the root's slash; None if the path is not a stream's.

    `encoded`: the path is still percent-encoded. Raises Malformed for an invalid id, StreamNotFound for the
    reserved name.
    """
    segments = [parse_segment(segment, encoded=encoded) for segment in path.split("/")]
    bucket = parse_bucket_id(segments[0])
    if len(segments) != 2 or segments[1] == LISTING:
        return None
    return stream_of_bucket(bucket, segments[1])


def stream_of_bucket(bucket: str, stream_id: str) -> StreamKey:
    """Return the key. Raises Malformed for an invalid id and StreamNotFound for the reserved name."""
    parse_bucket_id(bucket)
    check_stream_id(bucket, stream_id)
    return StreamKey(bucket, stream_id)


def parse_bucket_id(text: str) -> str:
    if not _BUCKET_ID.fullmatch(text) or text == RESERVED_SEGMENT:
        raise Malformed(
            f"Bucket id must be 4 to 64 of a-z, 0-9, - and _, and not {RESERVED_SEGMENT}; got {text[:80]!r}. "
            "A stream without a bucket is at /v1/stream/{path}"
        )
    return text


def check_stream_id(bucket: str, stream_id: str) -> None:
    """Check an id (extensions §1.1): any UTF-8 with a few exceptions. Raises Malformed or StreamNotFound."""
    if not stream_id:
        raise Malformed("Stream id must not be empty")
    check_id_text("Stream id", stream_id)
    if len(f"{bucket}/{stream_id}".encode()) > MAX_KEY_BYTES:
        raise Malformed(f"{{bucket}}/{{stream id}} must be at most {MAX_KEY_BYTES} bytes in UTF-8")
    if stream_id == RESERVED_SEGMENT:
        raise StreamNotFound(f"{RESERVED_SEGMENT} is reserved and is no stream")


def check_id_text(name: str, text: str) -> None:
    """Check the text of a stream id, of a prefix, or of a listing's cursor. Raises Malformed."""
    if "/" in text or "\0" in text or ".." in text:
        raise Malformed(f"{name} must not contain '/', NUL or '..'")
    if len(text.encode()) > MAX_KEY_BYTES:
        raise Malformed(f"{name} must be at most {MAX_KEY_BYTES} bytes in UTF-8")


MAX_LIMIT: Final = 1000


@dataclass(frozen=True, slots=True)
class ListingRequest:
    """`after` is the last id of the previous page; ids sort by their bytes in UTF-8."""

    prefix: str = ""
    after: str = ""
    limit: int = MAX_LIMIT


def parse_listing(prefix: str, after: str, limit: int) -> ListingRequest:
    """Parse the listing of a bucket. Raises Malformed."""
    request = ListingRequest(prefix, after, _check_limit(limit))
    check_id_text("prefix", request.prefix)
    check_id_text("after", request.after)
    return request


def parse_plain_listing(prefix: str, after: str, limit: int) -> ListingRequest:
    """Parse a listing of the plain surface, whose names have slashes, or of buckets. Raises Malformed."""
    request = ListingRequest(prefix, after, _check_limit(limit))
    for name, text in (("prefix", request.prefix), ("after", request.after)):
        if len(text.encode(errors="replace")) > MAX_STREAM_ID_BYTES:
            raise Malformed(f"{name} must be at most {MAX_STREAM_ID_BYTES} bytes in UTF-8")
        if CONTROL_CHARACTER.search(text):
            raise Malformed(f"{name} must not contain control characters, got {text[:80]!r}")
    return request


def _check_limit(limit: int) -> int:
    if not 1 <= limit <= MAX_LIMIT:
        raise Malformed(f"limit must be an integer between 1 and {MAX_LIMIT}, got {limit}")
    return limit

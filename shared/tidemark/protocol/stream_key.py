"""Names of streams: the path under a surface's root, decoded once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from tidemark.protocol.errors import Malformed, StreamNotFound

#: The plain surface `/v1/stream/{path}`; three characters can never be a bucket id.
PLAIN_BUCKET: Final = "v1"
#: DynamoDB allows a sort key of 1,024 bytes; the rest is our prefix.
MAX_STREAM_ID_BYTES: Final = 1000
#: First segment of the protocol's control paths (§6).
RESERVED_SEGMENT: Final = "__ds"
#: A percent sign that encodes nothing.
_BARE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL_CHARACTER: Final = re.compile("[\x00-\x1f\x7f]")
#: These characters in a path that a gateway has decoded make the name ambiguous: `%` and `?` were encoded
#: twice, and U+FFFD stands for any bytes that are not UTF-8.
_UNTELLABLE: Final = re.compile("[%?\ufffd]")


@dataclass(frozen=True, slots=True)
class StreamKey:
    """The key of a stream: a bucket, and a name in it."""

    bucket: str
    stream_id: str


def parse_plain_path(path: str, *, encoded: bool) -> StreamKey:
    """The stream at `path`, the part after `/v1/stream/`.

    `encoded` says whether it is still percent-encoded: some gateways decode it before we see it.
    Raises Malformed for a name that could be taken for another one, StreamNotFound for the
    reserved control paths.
    """
    segments = [parse_segment(segment, encoded=encoded) for segment in path.split("/")]
    for segment in segments:
        if segment in {"", ".", ".."}:
            raise Malformed("Stream name must not have empty, '.' or '..' segments")
        if "/" in segment or "\0" in segment:
            raise Malformed("Stream name must not contain an encoded '/' or NUL")
        if has_control_characters(segment):
            raise Malformed("Stream name must not contain control characters")
    stream_id = "/".join(segments)
    if len(stream_id.encode()) > MAX_STREAM_ID_BYTES:
        raise Malformed(f"Stream name is too long: at most {MAX_STREAM_ID_BYTES} bytes in UTF-8")
    if segments[0] == RESERVED_SEGMENT:
        raise StreamNotFound(f"Paths under {RESERVED_SEGMENT} are reserved and hold no streams")
    return StreamKey(PLAIN_BUCKET, stream_id)


def has_control_characters(text: str) -> bool:
    """Those of ASCII, which no name may have. Everything else is legal, though not all of it is seen."""
    return _CONTROL_CHARACTER.search(text) is not None


def parse_segment(segment: str, *, encoded: bool) -> str:
    """One segment of a path, decoded. Raises Malformed if it is not percent-encoded UTF-8, or if it was
    decoded before and may have been another name."""
    if not encoded:
        if found := _UNTELLABLE.search(segment):
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

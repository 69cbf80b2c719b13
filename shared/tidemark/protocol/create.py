"""Create a stream (§5.1), idempotent if the configuration matches; and forks (§4.2), which begin with another
stream's messages up to an offset, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tidemark.protocol.compaction import Compaction
from tidemark.protocol.errors import Conflict, ContentTypeMismatch, Malformed
from tidemark.protocol.expiry import FOREVER, NEVER, Expiry, Retention
from tidemark.protocol.header_values import parse_integer
from tidemark.protocol.messages import ContentType
from tidemark.protocol.offset import parse_token
from tidemark.protocol.stream_key import StreamKey


@dataclass(frozen=True, slots=True)
class StreamConfiguration:
    """The configuration of a creation; a repeated PUT must match it."""

    content_type: ContentType
    expiry: Expiry
    closed: bool
    retention: Retention = FOREVER
    compaction: Compaction | None = None


def check_same_configuration(existing: StreamConfiguration, requested: StreamConfiguration) -> None:
    """Raise Conflict that names the first difference."""
    if existing.content_type.essence != requested.content_type.essence:
        raise Conflict(
            f"Stream exists with content type {existing.content_type.essence}, "
            f"not {requested.content_type.essence}"
        )
    if not existing.expiry.matches(requested.expiry):
        raise Conflict("Stream exists with a different Stream-TTL or Stream-Expires-At")
    if existing.retention != requested.retention:
        raise Conflict("Stream exists with a different Stream-Retain-Seconds or Stream-Retain-Bytes")
    if existing.compaction != requested.compaction:
        raise Conflict("Stream exists with a different Stream-Compact, or other values beside it")
    if existing.closed != requested.closed:
        state = "closed" if existing.closed else "open"
        raise Conflict(f"Stream exists and is {state}; Stream-Closed must match")


#: A read visits each generation's log at most once, and the item that lists them must stay small.
MAX_GENERATIONS: Final = 32

#: The start of a stream as other servers write it; some clients and the official suite send it to fork there.
_BEGINNINGS: Final = frozenset({"-1", "0" * 16 + "_" + "0" * 16})


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """The point at which a fork leaves its source. `offset` None is the source's tail.

    `sub_offset` counts from `offset`: messages of a JSON stream, bytes of any other.
    """

    source: StreamKey
    offset: int | None = None
    sub_offset: int = 0


def parse_fork_offset(token: str | None) -> int | None:
    if token is None:
        return None
    position = 0 if token in _BEGINNINGS else parse_token(token)
    if position is None:
        raise Malformed(
            f"Stream-Fork-Offset must be a Stream-Next-Offset that this server gave, got {token!r:.80}"
        )
    return position


def parse_sub_offset(value: str | None) -> int:
    return 0 if value is None else parse_integer("Stream-Fork-Sub-Offset", value)


def decide_content_type(source: ContentType, requested: ContentType | None) -> ContentType:
    """Return the source's type for a fork. Raises Conflict if the request names another one."""
    if requested is None:
        return source
    if requested.essence != source.essence:
        raise ContentTypeMismatch(source.essence, requested.essence)
    return requested


def decide_expiry(source: Expiry, requested: Expiry) -> Expiry:
    """Return the fork's own expiry, or else its source's (table of §4.2)."""
    return source if requested == NEVER else requested


def check_generation(generation: int) -> None:
    if generation > MAX_GENERATIONS:
        raise Malformed(f"Forks of forks go at most {MAX_GENERATIONS} generations deep")


def check_same_fork(existing: ForkPoint | None, requested: ForkPoint | None) -> None:
    """Raise Conflict unless a repeated PUT describes the existing fork (§4.2, idempotent creation). A request
    without an offset matches any offset."""
    if existing is None or requested is None:
        if existing is not requested:
            raise Conflict("Stream exists and is not that fork; Stream-Forked-From must match")
        return
    if existing.source != requested.source:
        raise Conflict("Stream exists and is a fork of another stream")
    same_offset = requested.offset is None or requested.offset == existing.offset
    if not same_offset or existing.sub_offset != requested.sub_offset:
        raise Conflict("Stream exists and was forked at another offset")


def decide_sub_offset(
    content_type: ContentType, lengths: Sequence[int], appends: Sequence[int], skip: int, count: int
) -> int:
    """Return the number of bytes after the anchor that `count` means: messages of JSON, bytes of anything
    else.

    The anchor is `skip` bytes into a batch. `lengths` are the batch's messages, and `appends` the number of
    messages in each append (empty: one append). A sub-offset may not go beyond the end of the append that
    follows the anchor. Raises Malformed.
    """
    following = _following(content_type, lengths, appends, skip)
    if content_type.is_json:
        if count <= len(following):
            return sum(following[:count])
    elif count <= sum(following):
        return count
    unit = "messages" if content_type.is_json else "bytes"
    raise Malformed(f"Stream-Fork-Sub-Offset {count} reaches past the next append's {unit}")


def _following(
    content_type: ContentType, lengths: Sequence[int], appends: Sequence[int], skip: int
) -> list[int]:
    """Return the lengths of the messages, the first perhaps cut, from `skip` to the end of its append."""
    if not content_type.is_json:
        appends = [1] * len(lengths)
    rest = iter(lengths)
    begin = 0
    for messages in appends or [len(lengths)]:
        append = list(islice(rest, messages))
        size = sum(append)
        if begin + size > skip:
            skip -= begin
            while skip >= append[0]:
                skip -= append.pop(0)
            return [append[0] - skip, *append[1:]]
        begin += size
    return []

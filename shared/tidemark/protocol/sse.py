"""Server-sent events (§5.8): a data event, then a control event, for every batch of data.

The `id` of both is the next offset and the cursor, which identifies the incarnation. A browser's EventSource
sends its last id as `Last-Event-ID` when it reconnects, and so continues at the same place. A read also
accepts an id as its `offset`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Final

import orjson

from tidemark.protocol.messages import ContentType, render_body
from tidemark.protocol.offset import render_offset

#: A comment that keeps proxies from closing a silent connection; clients ignore it.
HEARTBEAT: Final = b": heartbeat\n\n"

#: Suffix of the id of the close: an EventSource that sends it back has seen the close.
CLOSED_ID: Final = ".closed"
#: An event's id. Earlier releases sent ids without a cursor.
EVENT_ID: Final = re.compile(r"([0-9]{16})(?:\.([0-9]{1,16}))?(\.closed)?", re.ASCII)

#: Replaces line ends by spaces: equal between the tokens of JSON, and impossible inside them.
_ON_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")


def _begin(event: bytes, next_offset: int, cursor: int) -> bytes:
    """Begin an event. The official suite looks for `data` right after `event`."""
    return b"id: %b.%d\nevent: %b" % (render_offset(next_offset).encode(), cursor, event)


def render_data_event(content_type: ContentType, stored: bytes, next_offset: int, cursor: int) -> bytes:
    """Render one `data` event. JSON is one line, text is sent line by line, and anything else as base64.

    A payload cannot end the event or begin another: each of its lines, with any line end, becomes a `data:`
    line. A leading space is doubled, because a client strips one.
    """
    begin = _begin(b"data", next_offset, cursor)
    if not content_type.is_text:
        return begin + b"\ndata:" + base64.b64encode(stored) + b"\n\n"
    if content_type.is_json:
        return begin + b"\ndata:" + render_body(content_type, stored).translate(_ON_ONE_LINE) + b"\n\n"
    lines = b"\n" + _as_utf8(stored).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    # Every line end now precedes `data:`, so this doubles only leading spaces.
    lines = lines.replace(b"\n", b"\ndata:").replace(b"\ndata: ", b"\ndata:  ")
    return begin + lines + b"\n\n"


def _as_utf8(text: bytes) -> bytes:
    """Replace invalid UTF-8 by U+FFFD, for example if a reader begins inside a character. An event stream is
    UTF-8, and a strict decoder would end it."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode(errors="replace").encode()
    return text


def render_data_slices(
    content_type: ContentType, stored: bytes, next_offset: int, cursor: int, slice_bytes: int
) -> Iterator[bytes]:
    """Yield the same event in slices, for a JSON message that is too large to copy."""
    if len(stored) <= slice_bytes or not content_type.is_json:
        yield render_data_event(content_type, stored, next_offset, cursor)
        return
    yield _begin(b"data", next_offset, cursor) + b"\ndata:["
    for at in range(0, len(stored) - 1, slice_bytes):  # Without the last comma.
        yield stored[at : min(at + slice_bytes, len(stored) - 1)].translate(_ON_ONE_LINE)
    yield b"]\n\n"


def render_control_event(next_offset: int, cursor: int, *, up_to_date: bool) -> bytes:
    """Return the control event after data, or alone."""
    fields: dict[str, str | bool] = {"streamNextOffset": render_offset(next_offset)}
    fields["streamCursor"] = str(cursor)
    if up_to_date:
        fields["upToDate"] = True
    return _begin(b"control", next_offset, cursor) + b"\ndata:" + orjson.dumps(fields) + b"\n\n"


def render_close_event(end: int, cursor: int, upstream_error: str | None) -> bytes:
    """Return the last control event of a closed stream. It has a cursor only in its id."""
    fields: dict[str, str | bool] = {"streamNextOffset": render_offset(end)}
    fields |= {"upToDate": True, "streamClosed": True}
    if upstream_error:
        fields["upstreamError"] = upstream_error
    begin = _begin(b"control", end, cursor).replace(b"\n", CLOSED_ID.encode() + b"\n", 1)
    return begin + b"\ndata:" + orjson.dumps(fields) + b"\n\n"


def text_end(data: bytes) -> int:
    """Return the end of the last whole UTF-8 character in `data`, but before a final CR.

    A writer may cut a character, or a CRLF, into two appends. The event then ends before it, and the next
    event begins with it, so that no reader gets half a character, or two line ends for one.
    """
    if data.endswith(b"\r"):
        return len(data) - 1
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        return len(data) - back if _width(byte) > back else len(data)
    return len(data)


def _width(lead: int) -> int:
    """Return the number of bytes of the character that starts with `lead`; 1 if `lead` starts none."""
    if 0b1100_0000 <= lead < 0b1110_0000:
        return 2
    if 0b1110_0000 <= lead < 0b1111_0000:
        return 3
    return 4 if 0b1111_0000 <= lead < 0b1111_1000 else 1

"""`tidemark tail`, `cat` and `append`: print and append messages, as bytes or as one JSON message a line."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
import uuid
from base64 import b64encode
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from io import BufferedReader
from itertools import islice
from typing import IO, Any, Final, TypeAlias

import click

from tidemark.cli.commands import STREAM, RemoteServer, asks_a_server
from tidemark.cli.terminal import ProgressLine, as_json, show, visible_bytes
from tidemark.client import Chunk, NotFound, Stream
from tidemark.client.chunks import is_json
from tidemark.client.server import stream_path
from tidemark.protocol.errors import Malformed
from tidemark.protocol.expiry import render_instant
from tidemark.protocol.json_text import check_value, split_array
from tidemark.protocol.offset import parse_read_from, render_offset
from tidemark.protocol.where import parse_filter

#: Largest piece of the input, in bytes and in lines.
_APPEND_BYTES: Final = 256 * 1024
APPEND_LINES: Final = 1000
#: Largest message of an append, in bytes, without the brackets around the message.
_LARGEST_MESSAGE: Final = 4 * 1024 * 1024 - 2
_TO_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")
_JSON_LINE: Final = '{"offset": "%o", "next_offset": "%e", "time": "%t", %s}'
_STARTS: Final = "an offset, now, a time such as 2026-11-21T10:00Z, or how long ago (90s, 15m, 1h, 2d)"
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def checked_start(_: click.Context, __: click.Parameter, start: str) -> str:
    """Return an offset, `now` or a time unchanged, and an age (15m) as a time."""
    if ago := re.fullmatch("([0-9]{1,9})([smhd])", start):
        seconds = time.time() - int(ago[1]) * _UNIT_SECONDS[ago[2]]
        return render_instant(max(0, int(seconds * 1000)))
    try:
        if parse_read_from(start or None) is None and not datetime.fromisoformat(start.upper()).tzinfo:
            raise ValueError(start)
    except ValueError:
        raise click.BadParameter(f"{start!r} is none of these: {_STARTS}") from None
    return start


_FROM: Final = click.option("--from", "start", default="", callback=checked_start, help=f"One of {_STARTS}.")
_LAST: Final = click.option("--last", "-n", type=click.IntRange(1), help="The last N messages.")
_BEFORE: Final = click.option("--before", help="With --last: only messages before this offset.")


def _checked_format(_: click.Context, __: click.Parameter, template: str | None) -> str | None:
    if wrong := re.search("%.?", re.sub("%[otes%]", "", template or "")):
        raise click.BadParameter(f"{wrong[0]!r} is unknown; use %o %e %t %s, and %% for a percent sign")
    return template


_FORMAT: Final = click.option(
    "--format",
    "template",
    callback=_checked_format,
    help="A line for each message: %o offset, %e next offset, %t time, %s the message.",
)


_WHERE: Final = click.option(
    "--where",
    multiple=True,
    help="Only JSON messages that meet this condition, such as '/type:eq:\"order\"'. May be repeated.",
)


@click.command(epilog="Example: tidemark tail chat/42 --last 10")
@STREAM
@_FROM
@_LAST
@_BEFORE
@_WHERE
@_FORMAT
@click.option(
    "--follow/--no-follow", "-f", default=True, help="Wait for more messages, until the stream is closed."
)
@click.option("--wait", is_flag=True, help="Wait until the stream exists.")
@asks_a_server
def tail(server: RemoteServer, stream: str, **asked: Any) -> None:
    """Print a stream's messages from the beginning, one JSON message a line. With --json, print an object
    for each message: its offset, the next offset, its time, and the message."""
    print_messages(server, stream, **asked)


@click.command(epilog='Example: tidemark cat chat/42 --from 1h --format "%o %t %s"')
@STREAM
@_FROM
@_LAST
@_BEFORE
@_WHERE
@_FORMAT
@asks_a_server
def cat(server: RemoteServer, stream: str, **asked: Any) -> None:
    """Print the messages that a stream has now: as `tail --no-follow`."""
    print_messages(server, stream, **asked, follow=False)


def print_messages(
    server: RemoteServer, stream: str, *, template: str | None, where: tuple[str, ...], **asked: Any
) -> None:
    if as_json():
        if template is not None:
            raise click.UsageError("Give --format or --json, not both")
        template = _JSON_LINE
    matches = None
    if where and template:  # The offset of a message is known only if all messages before it are there.
        matches, where = parse_filter(where).make_rule(), ()
    place, chunks = chunks_of(server, stream, by_message=template is not None, where=where, **asked)
    out = sys.stdout.buffer
    is_terminal = out.isatty()
    for chunk in with_progress(chunks):
        lines = printed(chunk)
        if template:
            shown = partial(json_member, content_type=chunk.content_type) if as_json() else bytes
            messages = placed(server, stream, chunk, place)
            if matches:
                if not is_json(chunk.content_type):
                    raise click.UsageError(f"--where needs a stream of JSON; this is {chunk.content_type}")
                messages = (each for each in messages if matches(each[3]))
            lines = formatted(messages, template.encode(), shown)
        place = chunk.offset
        for number, data in enumerate(lines):
            out.write(visible_bytes(data) if is_terminal else data)
            if number == 0:
                out.flush()  # Show the first line at once: a long page takes time.
        out.flush()


def with_progress(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Show progress if the output is a file: behind a pipe `less` or `grep` writes to the same terminal."""
    with ProgressLine(is_shown=sys.stderr.isatty() and size_of(sys.stdout.buffer) is not None) as progress:
        for chunk in chunks:
            yield chunk
            progress.add("pages", len(chunk.data))


def chunks_of(
    server: RemoteServer,
    stream: str,
    *,
    start: str,
    last: int | None,
    before: str | None,
    follow: bool,
    wait: bool = False,
    by_message: bool,
    where: tuple[str, ...] = (),
) -> tuple[str, Iterable[Chunk]]:
    """Return the start offset and the chunks. With `by_message` the start offset is exact."""
    if start and last:
        raise click.UsageError("Give --from or --last, not both")
    if before and not last:
        raise click.UsageError("--before takes --last, the number of messages before that offset")
    source, path = server.stream(stream), stream_path(stream)
    if before and last:
        page = source.history(before, last=last, where=where)
        return page.start or before, [page]
    # Read a stream that does not exist yet from its beginning.
    is_new = wait and is_missing(source)
    offset = "" if is_new else resolve_start(server, path, start, last)
    if by_message and not (offset or is_new):
        offset = server.get("/v1/stats", stream=path)["retained_offset"]
    # No event stream, because it splits text into lines: the output must be byte for byte as written.
    return offset or "-1", source.follow(
        offset or "-1",
        live=("long-poll" if where else "socket") if follow else False,
        where=where,
        gone="error" if offset else "earliest",
        missing="wait" if wait else "error",
        whole_text=follow and not by_message,
    )


def is_missing(stream: Stream) -> bool:
    try:
        stream.head()
    except NotFound:
        return True
    return False


def resolve_start(server: RemoteServer, path: str, start: str, last: int | None) -> str:
    """Return an offset; empty for the earliest retained offset."""
    if last is None and parse_read_from(start or None) is not None:
        return start
    asked = {"last": str(last)} if last is not None else {"from": start}
    return str(server.get("/v1/start", stream=path, **asked)["offset"])


@click.command(epilog="Example: tidemark append chat/42 --create application/json lines.jsonl")
@STREAM
@click.option(
    "--create", "content_type", help="Create the stream with this content type if it does not exist."
)
@click.option("--close", is_flag=True, help="Close the stream at the end of the input.")
@click.argument("file", type=click.File("rb"), default="-")
@asks_a_server
def append(
    server: RemoteServer, stream: str, content_type: str | None, file: BufferedReader, *, close: bool
) -> None:
    """Append a file or the standard input: byte for byte, or, to a JSON stream, each line as a message."""
    target = server.stream(stream)
    if content_type is not None:
        target = server.create(stream, content_type)
    of_json = is_json(target.head().content_type)
    sent_bytes = sent_messages = 0
    file_bytes = size_of(file)
    # A producer, so that a retry is written once. One request at a time: the server refuses a request that
    # overtakes another, and larger requests are as fast.
    producer = target.producer(f"tidemark-{uuid.uuid4().hex}", closes=close, max_in_flight=1)
    with producer, ProgressLine(is_shown=file_bytes is not None) as progress:
        try:
            for messages in groups(file) if of_json else pieces(file):
                for message in messages:
                    producer.append(message)
                sent_messages += len(messages)
                sent_bytes += sum(map(len, messages))
                progress.show(f"{sent_messages:,} messages", sent_bytes, file_bytes or 0)
        except click.ClickException:
            producer.flush()  # The error text promises that the lines before were appended.
            raise
    if of_json:
        show({"messages": sent_messages, "bytes": sent_bytes}, f"{sent_messages} messages")
    else:
        show({"bytes": sent_bytes}, f"{sent_bytes} bytes")


def printed(chunk: Chunk) -> Iterator[bytes]:
    """Yield JSON messages as they were sent, one a line, or the bytes of another stream."""
    if not is_json(chunk.content_type):
        yield chunk.data
    elif chunk.data:
        yield from map(message_line, split_array(chunk.data))


Placed: TypeAlias = tuple[int, int, int, bytes]
"""The begin and end of a message, the time of its append (Unix milliseconds), and its bytes."""


def placed(server: RemoteServer, stream: str, chunk: Chunk, start: str) -> Iterator[Placed]:
    """Yield the messages of a chunk that begins at `start`, or one message for each write of bytes. Requests
    the times from the server once a page."""
    of_json, at = is_json(chunk.content_type), 0
    messages = iter(split_array(chunk.data) if of_json and chunk.data else ())
    while chunk.data and start < chunk.offset:
        times = server.get("/v1/times", stream=stream_path(stream), offset=start)
        begin, start = int(times["offset"]), times["end_offset"]
        if begin == int(start):
            return  # The stream was deleted and created again.
        ends = map(int, times.get("message_ends") or ())
        for time_ms, count, size in zip(times["times_ms"], times["messages"], times["bytes"], strict=True):
            if not of_json and at < len(chunk.data):
                piece = chunk.data[at : at + size]
                yield begin, begin + len(piece), time_ms, piece
                begin, at = begin + size, at + size
            for message in islice(messages, count if of_json else 0):
                length = len(message) + 1  # With its comma.
                end = next(ends, begin + length)
                yield end - length, end, time_ms, message.translate(_TO_SPACES)
                begin = end


def formatted(
    messages: Iterable[Placed], template: bytes, shown: Callable[[bytes], bytes]
) -> Iterator[bytes]:
    for begin, end, time_ms, data in messages:
        named = {"o": render_offset(begin), "e": render_offset(end), "t": render_instant(time_ms)}
        values = {name.encode(): value.encode() for name, value in named.items()}
        values |= {b"s": shown(data), b"%": b"%"}
        yield re.sub(rb"%(.)", lambda found: values[found[1]], template) + b"\n"  # noqa: B023


def message_line(message: bytes) -> bytes:
    """Put a JSON message on one line. Line ends occur only between tokens, so spaces can replace them."""
    return message.translate(_TO_SPACES) + b"\n"


def json_member(data: bytes, content_type: str) -> bytes:
    """Return a JSON member with the data. JSON stays as sent, so large numbers keep their digits. Text with a
    split character becomes base64."""
    if is_json(content_type):
        return b'"message": ' + data
    with suppress(UnicodeDecodeError):
        if content_type.startswith("text/"):
            return b'"text": ' + json.dumps(data.decode(), ensure_ascii=False).encode()
    return b'"base64": "%b"' % b64encode(data)


def pieces(file: BufferedReader) -> Iterator[list[bytes]]:
    """Yield the bytes of each read, without waiting for more from a slow pipe."""
    while data := file.read1(_APPEND_BYTES):
        yield [data]


def groups(file: BufferedReader, unfinished: deque[bytes] | None = None) -> Iterator[list[bytes]]:
    """Yield groups of messages to send together: the non-blank lines of one read. A last line without a line
    end goes into `unfinished`, if given. Raises ClickException for a line that is not JSON, after yielding
    the lines before."""
    begun, line_number = list[bytes](), 0
    for [data] in pieces(file):
        begun.append(data if begun else data.removeprefix(BOM_UTF8))
        if b"\n" in data:
            *whole, rest = b"".join(begun).split(b"\n")
            begun = [rest]
            for start in range(0, len(whole), APPEND_LINES):
                yield from _checked(whole[start : start + APPEND_LINES], line_number + start)
            line_number += len(whole)
        elif sum(map(len, begun)) > _LARGEST_MESSAGE:
            unfinished = None
            break
    last = b"".join(begun)
    if unfinished is None:
        yield from _checked([last], line_number)
    elif last.strip():
        unfinished.append(last)


def _checked(lines: list[bytes], before: int) -> Iterator[list[bytes]]:
    """Yield the valid messages of these lines; `before` is the number of earlier lines of the input."""
    messages = []
    for number, line in enumerate(lines, before + 1):
        if not line.strip():
            continue
        try:
            if len(line) > _LARGEST_MESSAGE:
                raise Malformed(f"It is larger than {_LARGEST_MESSAGE:,} bytes, which an append takes")
            messages.append(check_value(line))
        except Malformed as wrong:
            if messages:
                yield messages
            raise click.ClickException(
                f"Line {number} of the input: {wrong.message}. The lines before it were appended"
            ) from None
    if messages:
        yield messages


def size_of(file: IO[bytes]) -> int | None:
    """Return the size of a regular file in bytes, or None for a pipe or device."""
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None

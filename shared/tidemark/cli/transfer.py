"""`tidemark cp`: copies a stream or a file, and resumes an interrupted copy.

A run compares the target's data with the beginning of the source, and appends the rest. All runs use one
producer id and epoch, with one request in flight. If the server reports a sequence number as taken, an
earlier append has arrived late: the run compares the target again before it sends more. Each message is
therefore written once.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Final, cast

import click

from tidemark.cli.commands import PATIENCE, RemoteServer, asks_a_server, checked_token, complete_stream
from tidemark.cli.messages import groups, message_line, pieces
from tidemark.cli.terminal import ProgressLine, show, visible_bytes
from tidemark.client import MalformedReply, NotFound, Stream
from tidemark.client.chunks import is_json
from tidemark.client.exchange import Request, exchange
from tidemark.protocol.json_text import split_array

_PRODUCER: Final = {"Producer-Id": "tidemark-cp", "Producer-Epoch": "0"}
_REQUEST_BYTES: Final = 1024 * 1024


@click.command(epilog="Example: tidemark cp chat/42 ./chat.jsonl --follow")
@click.argument("source", shell_complete=complete_stream)
@click.argument("target", shell_complete=complete_stream)
@click.option("--follow", "-f", is_flag=True, help="Wait for more messages, until the source is closed.")
@click.option("--final", is_flag=True, help="Copy a file's last line, although it has no end of line yet.")
@click.option("--content-type", help="Type of a new target, if the source is a file (from its name).")
@click.option("--source-token", help="The source's, if it is on another server (or TIDEMARK_SOURCE_TOKEN).")
@asks_a_server
def cp(
    server: RemoteServer,
    source: str,
    target: str,
    content_type: str | None,
    source_token: str | None,
    *,
    follow: bool,
    final: bool,
) -> None:
    """Copy SOURCE to TARGET: streams, of one server or of two, or a file. After an interruption, run the
    command again to resume the copy. A new stream gets the type and expiry of the source; it is closed if
    the source is.

    A file is written ./name, file:/path or - (standard input or output); it has each JSON message on a line.
    A last line without its end of line is still being written: a later run copies it, or --final.
    """
    if is_file(source) and (is_file(target) or follow):
        raise click.UsageError("one of SOURCE and TARGET is a stream, and only a stream can be followed")
    there = server.serving(target)
    origin: StreamSource | FileSource
    if is_file(source):
        origin = FileSource(source, content_type, takes_last_line=final or source == "-")
    else:
        here = server.serving(source)
        is_other = not is_file(target) and here.url != there.url
        if source_token is None:
            source_token = os.environ.get("TIDEMARK_SOURCE_TOKEN")
        if source_token is not None:
            here = RemoteServer(here.url, checked_token(source_token, "the source's token"))
        elif is_other and not here.token_home:
            here = RemoteServer(here.url)
        meta = click.get_current_context().meta
        meta["stream"] = source
        origin = StreamSource(here.stream(source), follow=follow)
        del meta["stream"]  # An error about the target names its request.
    copied = copy(origin, FileTarget(target) if is_file(target) else StreamTarget(there, target))
    if target != "-":
        text = f"{copied.count:,} {copied.unit} copied; {copied.found:,} were there"
        if origin.unfinished:
            text += "; the last line has no end of line: --final copies it"
        show({**asdict(copied), "closed": origin.closed}, text)


def is_file(name: str) -> bool:
    return name == "-" or name.startswith(("./", "../", "file:"))


class StreamSource:
    def __init__(self, stream: Stream, *, follow: bool) -> None:
        head = stream.head()
        self.url = stream.url
        self.content_type, self.closed = head.content_type, False
        self.creation = {
            "ttl": head.ttl_seconds,
            "expires_at": head.expires_at if not head.ttl_seconds else None,
        }
        self._stream, self._live = stream, follow
        self.unfinished = deque[bytes]()
        #: Fixed, so that data trimmed during the copy is an error and not skipped.
        self._start = head.headers.get("stream-retained-offset", "-1")
        self.lost = f"the source was trimmed and begins at offset {self._start}"
        if "stream-compact" in head.headers:
            self.lost = "the source is compacted, so its older messages go"
        elif self._start == "-1":
            self.lost = ""

    def parts(self, *, of_json: bool) -> Iterator[list[bytes]]:
        for chunk in self._stream.follow(
            self._start, live="socket" if self._live else False, whole_text=False
        ):
            self.closed = chunk.closed
            yield parted(chunk.data, of_json=of_json)


class FileSource:
    closed = False
    url = lost = ""

    def __init__(self, name: str, content_type: str | None, *, takes_last_line: bool) -> None:
        lines = name.endswith((".jsonl", ".ndjson"))
        self.content_type = content_type or ("application/json" if lines else "application/octet-stream")
        self.creation: dict[str, None] = {}
        #: The last line, if it has no line end: compared with the target, but not copied.
        self.unfinished = deque[bytes]()
        self._name, self._takes_last_line = name.removeprefix("file:"), takes_last_line

    def parts(self, *, of_json: bool) -> Iterator[list[bytes]]:
        with click.open_file(self._name, "rb") as opened:
            file = cast("BufferedReader", opened)
            unfinished = None if self._takes_last_line else self.unfinished
            yield from groups(file, unfinished) if of_json else pieces(file)


def parted(data: bytes, *, of_json: bool) -> list[bytes]:
    """Return the messages of a JSON array, or the bytes in pieces that fit into a request."""
    if of_json:
        return list(split_array(data)) if data else []
    return [data[start : start + _REQUEST_BYTES] for start in range(0, len(data), _REQUEST_BYTES)]


@dataclass
class Copied:
    """Counts of the units written, and of the units that the target had already."""

    unit: str
    count: int = 0
    found: int = 0
    bytes: int = 0


class Pending:
    """The messages of the source that the target does not have yet."""

    def __init__(self, parts: Iterator[list[bytes]], unfinished: deque[bytes], *, of_json: bool) -> None:
        self.of_json = of_json
        self._parts, self._held, self._unfinished = parts, deque[bytes](), unfinished

    def next(self) -> list[bytes]:
        """Return the messages of one request; an empty list at the end of the source."""
        self._fill()
        taken, room = list[bytes](), _REQUEST_BYTES
        for each in self._held:
            if taken and len(each) > room:
                break
            taken.append(each)
            room -= len(each)
        return taken

    def drop(self, found: Sequence[bytes]) -> None:
        """Drop messages that the target has. Raises OtherData if the source has other messages there."""
        for part in found:
            if self.of_json:
                first = self._first()
                if first != part and not is_same_value(first, part):
                    raise OtherData
            else:
                self._drop_bytes(part)

    def _drop_bytes(self, rest: bytes) -> None:
        """Drop bytes, although source and target are split into different pieces."""
        while rest:
            first = self._first()
            length = min(len(first), len(rest))
            if first[:length] != rest[:length]:
                raise OtherData
            if first[length:]:
                self._held.appendleft(first[length:])
            rest = rest[length:]

    def _fill(self) -> None:
        while not self._held and (part := next(self._parts, None)) is not None:
            self._held.extend(part)

    def _first(self) -> bytes:
        self._fill()
        if not (left := self._held or self._unfinished):
            raise OtherData
        return left.popleft()


def is_same_value(one: bytes, other: bytes) -> bool:
    """Whether two JSON texts have the same value: some servers rewrite JSON, with 1.0 as 1."""
    try:
        return canonical_json(one) == canonical_json(other)
    except (ValueError, RecursionError):  # A file may have lines that are not JSON.
        return False


def canonical_json(text: bytes) -> str:
    """Return canonical text, because in Python `True == 1`."""
    return json.dumps(json.loads(text, parse_float=_shortest), sort_keys=True)


def _shortest(digits: str) -> float:
    number = float(digits)
    return int(number) if number.is_integer() else number


class OtherData(Exception):
    """The target does not begin with the source's data."""


class StreamTarget:
    def __init__(self, server: RemoteServer, name: str) -> None:
        self._server, self._stream = server, server.stream(name)
        self._seq, self._offset = 0, "-1"

    def open(self, origin: StreamSource | FileSource) -> str:
        """Create the stream if it does not exist, and return its content type."""
        if self._stream.url == origin.url:
            raise click.UsageError("SOURCE and TARGET are the same stream")
        try:
            return self._stream.head().content_type
        except NotFound:
            self._server.create(self._stream.url, origin.content_type, **origin.creation)
        return self._stream.head().content_type

    def found(self, *, of_json: bool) -> Iterator[list[bytes]]:
        """Yield the messages of the target behind the known offset."""
        for chunk in self._stream.follow(self._offset, live=False, whole_text=False):
            self._offset = chunk.offset
            yield parted(chunk.data, of_json=of_json)

    def write(self, messages: Sequence[bytes], *, of_json: bool) -> bool:
        """Append messages. Returns False if the producer's number was taken: compare the target again."""
        body = b"[%b]" % b",".join(messages) if of_json else b"".join(messages)
        headers = {
            **_PRODUCER,
            "Producer-Seq": str(self._seq),
            "Content-Type": self._stream.content_type or "",
        }
        request = Request("POST", self._stream.url, headers, body=body)
        # A copy that has begun retries without limit.
        reply = self._server.run(exchange(request, PATIENCE, forever=self._seq > 0))
        if reply.status == 204 and reply.headers.get("producer-seq", "").isdecimal():
            self._seq = int(reply.headers["producer-seq"]) + 1
            return False
        if reply.status != 200 or "stream-next-offset" not in reply.headers:
            raise MalformedReply(f"{request.what}: {reply.status} is not the answer to a producer")
        self._seq += 1
        self._offset = reply.headers["stream-next-offset"]
        return True

    def close(self) -> None:
        self._stream.close()


class FileTarget:
    """A file, or the standard output, which cannot be read for the comparison."""

    def __init__(self, name: str) -> None:
        self._path = None if name == "-" else Path(name.removeprefix("file:"))
        self._file: BinaryIO = sys.stdout.buffer
        if self._path is not None:
            self._file = click.get_current_context().with_resource(self._path.open("a+b"))
        self._shown: Callable[[bytes], bytes] = visible_bytes if self._file.isatty() else bytes
        #: An incomplete last line of an interrupted run.
        self._begun = b""

    def open(self, origin: StreamSource | FileSource) -> str:
        return origin.content_type

    def found(self, *, of_json: bool) -> Iterator[list[bytes]]:
        if self._path is None:
            return
        self._file.seek(0)
        if not of_json:
            yield from ([piece] for piece in iter(lambda: self._file.read(_REQUEST_BYTES), b""))
            return
        for line in self._file:
            if line.endswith(b"\n"):
                yield [line[:-1]]
            else:
                self._begun = line

    def write(self, messages: Sequence[bytes], *, of_json: bool) -> bool:
        first, *more = map(message_line, messages) if of_json else messages
        if not first.startswith(self._begun):
            raise OtherData
        left, self._begun = [first.removeprefix(self._begun), *more], b""
        self._file.writelines(map(self._shown, left))
        self._file.flush()
        return True

    def close(self) -> None:
        if self._begun:
            raise OtherData
        if self._path is not None:
            os.fsync(self._file.fileno())


def copy(origin: StreamSource | FileSource, target: StreamTarget | FileTarget) -> Copied:
    of_json = is_json(target.open(origin))
    if of_json != is_json(origin.content_type) and isinstance(origin, StreamSource):
        raise click.ClickException("one of the two is a JSON stream, and the other is not")
    pending = Pending(origin.parts(of_json=of_json), origin.unfinished, of_json=of_json)
    copied = Copied("messages" if of_json else "bytes")
    counted: Callable[[Sequence[bytes]], int] = len if of_json else lambda parts: sum(map(len, parts))

    def compare(progress: ProgressLine) -> None:
        for found in target.found(of_json=of_json):
            pending.drop(found)
            copied.found += counted(found)
            progress.show(f"{copied.found:,} {copied.unit} were there")

    try:
        with ProgressLine() as progress:
            compare(progress)
            while messages := pending.next():
                if target.write(messages, of_json=of_json):
                    pending.drop(messages)
                    copied.count += counted(messages)
                    copied.bytes += sum(map(len, messages))
                    progress.show(f"{copied.count:,} {copied.unit} copied", copied.bytes)
                else:
                    compare(progress)
        if origin.closed or isinstance(target, FileTarget):
            target.close()
    except OtherData:
        why = origin.lost and f" ({origin.lost}; a copy with --follow goes on all the same)"
        text = f"the target does not begin with the source's data{why}: copy to a new stream or file"
        raise click.ClickException(text) from None
    return copied

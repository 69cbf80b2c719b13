"""`python -m tidemark.ops.smoke URL`: run one stream's life against a deployed system, and print the results.

Creates a stream, appends, reads, waits by long-poll for a second append and once more until the timeout,
watches the stream by a WebSocket if there is one, and deletes the stream. Needs only the URL, and a token if
the system requires one (TIDEMARK_TOKEN in the environment).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import urllib.parse
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

import httpx
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from tidemark.client import Chunk, NotFound, Retry, Stream, StreamError, StreamGone, Unreachable
from tidemark.client.socket import socket_url
from tidemark.protocol.errors import OriginAccessDenied
from tidemark.protocol.socket import PATH, parse_messages, render_watches

_T = TypeVar("_T")

#: Seconds before the second append, so that the reader is surely waiting.
_SETTLE_SECONDS: Final = 2.0
#: A longer wait was not ended by the trigger: readers also check every 20 s by themselves.
_WOKEN_SECONDS: Final = 15.0
_FIRST: Final = b"high tide"
_SECOND: Final = b"low tide"
_THIRD: Final = b"high again"
_ADVICE: Final[dict[int | str, str]] = {
    401: " (set TIDEMARK_TOKEN; `make token` makes one)",
    403: " (the token's scopes must cover read:v1 write:v1 manage:v1)",
}


class SmokeFailed(Exception):
    """The message names the failed step, the result and the expected result."""


def smoke(base_url: str, token: str) -> None:
    """Run all steps. Raises SmokeFailed. The stream is deleted in any case."""
    url = f"{base_url.rstrip('/')}/v1/stream/smoke-{uuid.uuid4()}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    once = Retry(max_retries=0)  # An error in a first answer is a finding.
    stream = Stream(url, content_type="text/plain", headers=headers, retry=once)
    print(f"stream    {url}")
    try:
        step("create", lambda: Stream.create(url, content_type="text/plain", headers=headers, retry=once))
        step("append", lambda: stream.append(_FIRST))
        expect("read", step("read", stream.read), _FIRST)
        tail = wait_for_an_append(stream)
        # An answer without a body, as for most waits: it must end behind any proxy.
        expect("silence", step("silence", lambda: stream.read(tail, live="long-poll")), b"")
        watch_by_socket(base_url, stream, token)
    except BaseException:
        with suppress(StreamError):
            stream.delete()
        raise
    step("delete", stream.delete)
    try:
        stream.read()
    except (NotFound, StreamGone) as gone:
        print(f"gone      {gone.status}")
    except StreamError as failed:
        raise SmokeFailed(f"read after delete: {failed}") from failed
    else:
        raise SmokeFailed("read after delete: the stream is still there")


def wait_for_an_append(stream: Stream) -> str:
    """Run a long-poll at the tail, with an append while it waits. Returns the offset to read from next."""
    woken = step("long-poll", lambda: _woken_after(stream))
    late = " (late: the reader looked by itself; the notifier's log says why)"
    how = "" if woken < _WOKEN_SECONDS else late
    print(f"          answered {woken * 1000:.0f} ms after the append was sent{how}")
    read = step("read", stream.read)
    expect("read", read, _FIRST + _SECOND)
    return read.offset


def _woken_after(stream: Stream) -> float:
    """Return the seconds from the sending of an append to the answer of a waiting long-poll."""

    def append_late() -> float:
        time.sleep(_SETTLE_SECONDS)
        sent = time.monotonic()
        stream.append(_SECOND)
        return sent

    with ThreadPoolExecutor(1) as pool:
        chunk, sent = stream.read("now"), pool.submit(append_late)
        while not (chunk := stream.read(chunk.offset, live="long-poll")).data:
            if sent.done():
                sent.result()  # Raises the append's exception.
        woken = time.monotonic()
        return woken - sent.result()


def watch_by_socket(base_url: str, stream: Stream, token: str) -> None:
    """Watch the stream, and append a message whose tail the socket must send. Skipped without sockets."""
    try:
        answer = httpx.get(base_url.rstrip("/") + PATH, timeout=_WOKEN_SECONDS)
        if answer.status_code == 404:
            print(f"socket    SKIPPED: GET {PATH} is 404, this system has none")
            return
        url = socket_url(answer)
        if url is None:
            raise SmokeFailed(f"socket: GET {PATH} is {answer.status_code}, and names none: {answer.text}")
        print(f"socket    {url}")
        with connect(url, open_timeout=_WOKEN_SECONDS) as socket:
            [frame] = render_watches([urllib.parse.urlsplit(stream.url).path], token or None)
            socket.send(frame)
            before = _next_message(socket)
            if "seconds" not in before:
                raise SmokeFailed(f"socket: the watch is refused: {before}")
            tail = step("append", lambda: stream.append(_THIRD))
            started = time.monotonic()
            while (now := _next_message(socket)).get("offset") == before["offset"]:
                continue
    except (httpx.HTTPError, OSError, WebSocketException) as failed:
        raise SmokeFailed(f"socket: {failed!r}") from failed
    if now.get("offset") != tail.offset:
        raise SmokeFailed(f"socket: received {now}, not {tail.offset}")
    print(
        f"          received {(time.monotonic() - started) * 1000:.0f} ms after the append was acknowledged"
    )


def _next_message(socket: ClientConnection) -> dict[str, Any]:
    """Return the next message about the stream. Raises SmokeFailed."""
    try:
        return parse_messages(socket.recv(timeout=_WOKEN_SECONDS))[0]
    except TimeoutError:
        raise SmokeFailed(
            f"socket: no message for {_WOKEN_SECONDS:.0f} s; the notifier's log says why"
        ) from None


def step(name: str, call: Callable[[], _T]) -> _T:
    """Run one step and print its duration. Raises SmokeFailed for the client's exceptions."""
    started = time.monotonic()
    try:
        result = call()
    except StreamError as failed:
        status = getattr(failed, "status", "no answer" if isinstance(failed, Unreachable) else "failed")
        advice = "" if OriginAccessDenied.message in str(failed) else _ADVICE.get(status, "")
        reason = str(failed).partition(f": {status}: ")[2] or failed
        raise SmokeFailed(f"{name}: {status}: {reason}{advice}") from failed
    offset = getattr(result, "offset", None)
    print(
        f"{name:<9} {(time.monotonic() - started) * 1000:.0f} ms{f'  next offset {offset}' if offset else ''}"
    )
    return result


def expect(name: str, read: Chunk, data: bytes) -> None:
    if read.data != data:
        raise SmokeFailed(f"{name}: the data is {read.data!r}, not {data!r}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tidemark.ops.smoke", description=__doc__)
    parser.add_argument(
        "url", help="the stack's output Url, for example https://d111111abcdef8.cloudfront.net"
    )
    given = parser.parse_args(arguments)
    if urllib.parse.urlsplit(given.url).scheme not in ("http", "https"):
        parser.error(f"{given.url!r} is no URL; write it with https://")
    try:
        smoke(given.url, os.environ.get("TIDEMARK_TOKEN", ""))
    except (SmokeFailed, ValueError) as failure:  # ValueError: the URL or token cannot be sent.
        print(f"FAILED    {failure}", file=sys.stderr)
        return 1
    print("all as expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())

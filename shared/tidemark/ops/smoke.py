"""`python -m tidemark.ops.smoke URL`: one stream's life against a deployed system, and what was seen.

Creates a stream, appends, reads, waits by long-poll for a second append, and deletes the stream. It needs no
more than the URL, and a token where the system asks for one (TOKEN in the environment).
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from typing import Final

#: A long-poll is answered within 30 seconds, and a new environment takes a few more to start.
_TIMEOUT_SECONDS: Final = 60.0
#: The reader waits for so long before the second append, so that it is surely waiting.
_SETTLE_SECONDS: Final = 2.0
#: Readers look by themselves every twenty seconds: a wait that ends later was not ended by the trigger.
_WOKEN_SECONDS: Final = 15.0
_FIRST: Final = b"high tide"
_SECOND: Final = b"low tide"


class SmokeFailed(Exception):
    """The message says which step failed, what came and what was expected."""


@dataclass(frozen=True, slots=True)
class Seen:
    status: int
    headers: Message
    body: bytes
    seconds: float


class SmokeStream:
    """Requests to one stream. `token` goes into the Authorization header; empty sends none."""

    def __init__(self, base_url: str, name: str, token: str) -> None:
        self.url = f"{base_url.rstrip('/')}/v1/stream/{name}"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def request(self, method: str, query: Mapping[str, str] | None = None, body: bytes | None = None) -> Seen:
        """Raises SmokeFailed when nothing answers."""
        url = self.url + (f"?{urllib.parse.urlencode(query)}" if query else "")
        headers = self._headers | {"Content-Type": "text/plain"}
        request = urllib.request.Request(url, body, headers, method=method)  # noqa: S310 - the scheme is checked
        started = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as reply:  # noqa: S310
                return Seen(reply.status, reply.headers, reply.read(), time.monotonic() - started)
        except urllib.error.HTTPError as reply:
            return Seen(reply.code, reply.headers, reply.read(), time.monotonic() - started)
        except OSError as error:
            raise SmokeFailed(f"{method} {url}: no answer ({error})") from error


def smoke(base_url: str, token: str) -> None:
    """Raises SmokeFailed. The stream is deleted in any case."""
    client = SmokeStream(base_url, f"smoke-{uuid.uuid4()}", token)
    print(f"stream    {client.url}")
    try:
        created = check("create", client.request("PUT"), 201)
        say("create", created)
        appended = check("append", client.request("POST", body=_FIRST), 204)
        say("append", appended)
        read = check("read", client.request("GET", {"offset": "-1"}), 200)
        if read.body != _FIRST:
            raise SmokeFailed(f"read: the body is {read.body!r}, not {_FIRST!r}")
        say("read", read)
        wait_for_an_append(client, read.headers["Stream-Next-Offset"])
    finally:
        deleted = client.request("DELETE")
    say("delete", check("delete", deleted, 204))
    gone = check("read after delete", client.request("GET", {"offset": "-1"}), 404, 410)
    say("gone", gone)


def wait_for_an_append(client: SmokeStream, offset: str) -> None:
    """A long-poll from `offset`, and an append while it waits."""
    late = threading.Timer(_SETTLE_SECONDS, lambda: client.request("POST", body=_SECOND))
    late.start()
    woken = client.request("GET", {"offset": offset, "live": "long-poll"})
    late.join()
    check("long-poll", woken, 200)
    if woken.body != _SECOND:
        raise SmokeFailed(f"long-poll: the body is {woken.body!r}, not {_SECOND!r}")
    after = woken.seconds - _SETTLE_SECONDS
    how = (
        "" if after < _WOKEN_SECONDS else " (late: the reader looked by itself; the notifier's log says why)"
    )
    print(
        f"long-poll {woken.status}  answered {max(after, 0.0) * 1000:.0f} ms after the append was sent{how}"
    )


def check(step: str, response: Seen, *expected: int) -> Seen:
    if response.status not in expected:
        wanted = " or ".join(map(str, expected))
        body = response.body[:300].decode(errors="replace")
        raise SmokeFailed(
            f"{step}: {response.status}, not {wanted}: {body or 'empty body'}{advice(response)}"
        )
    return response


def advice(response: Seen) -> str:
    if response.status == 401:
        return " (set TOKEN; `make token` makes one)"
    if response.status == 403:
        return " (the token's scopes must cover read:v1 write:v1 manage:v1; behind CloudFront use its URL)"
    return ""


def say(step: str, response: Seen) -> None:
    offset = response.headers.get("Stream-Next-Offset")
    tail = f"  next offset {offset}" if offset else ""
    print(f"{step:<9} {response.status}  {response.seconds * 1000:.0f} ms{tail}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tidemark.ops.smoke", description=__doc__)
    parser.add_argument(
        "url", help="the stack's output Url, for example https://d111111abcdef8.cloudfront.net"
    )
    given = parser.parse_args(arguments)
    if urllib.parse.urlsplit(given.url).scheme not in ("http", "https"):
        parser.error(f"{given.url!r} is no URL; write it with https://")
    try:
        smoke(given.url, os.environ.get("TOKEN", ""))
    except SmokeFailed as failure:
        print(f"FAILED    {failure}", file=sys.stderr)
        return 1
    print("all as expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())

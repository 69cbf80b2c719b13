"""A reader that survives retention: when its offset is gone (410), it starts over from bootstrap.

With the official client (`durable-streams`) and the standard library.

    BASE_URL=http://127.0.0.1:4437 python docs/examples/recover_from_410.py
"""

from __future__ import annotations

import email
import json
import os
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from http.client import HTTPResponse
from typing import Any

from durable_streams import DurableStream, RetentionGoneError, stream

Document = dict[str, str]


@dataclass(frozen=True)
class State:
    """The document is a dictionary; an edit sets one of its keys."""

    document: Document
    offset: str


def apply(document: Document, edit: dict[str, str]) -> Document:
    return document | {edit["set"]: edit["value"]}


class _RedirectsByHand(urllib.request.HTTPRedirectHandler):
    """A redirect's own headers say where to read on; what it leads to does not."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _get(url: str) -> HTTPResponse | urllib.error.HTTPError:
    try:
        answer: HTTPResponse = urllib.request.build_opener(_RedirectsByHand).open(url, timeout=30)
    except urllib.error.HTTPError as redirect:
        if redirect.code != 307:
            raise
        return redirect
    return answer


def bootstrap(url: str) -> State:
    """The document as it is now, and the offset to read on from."""
    answer = _get(f"{url}/bootstrap")
    content = _get(answer.headers["Location"]) if answer.status == 307 else answer
    head = f"Content-Type: {content.headers['Content-Type']}\r\n\r\n".encode()
    whole = email.message_from_bytes(head + content.read())
    snapshot, *updates = [part.get_payload(decode=True) for part in whole.get_payload()]  # type: ignore[union-attr]
    has_snapshot = answer.headers["Stream-Snapshot-Offset"] != "-1"
    document = json.loads(snapshot) if has_snapshot else {}
    return State(reduce(apply, map(json.loads, updates), document), answer.headers["Stream-Next-Offset"])


def catch_up(url: str, state: State) -> State:
    """Everything up to the tail, from wherever the reader was; -1 for one that is new."""
    try:
        with stream(url, offset=state.offset, live=False) as response:
            edits: list[dict[str, str]] = response.read_json()
            return State(reduce(apply, edits, state.document), response.offset)
    except RetentionGoneError:
        print(f"  {state.offset} is gone: starting over from bootstrap")
        return bootstrap(url)


def tail(url: str, state: State, done: Callable[[Document], bool]) -> State:
    """Follow the stream until `done` says that the document is as wanted."""
    with stream(url, offset=state.offset, live="sse") as response:
        for event in response.iter_events(mode="json"):
            state = State(reduce(apply, event.data, state.document), event.next_offset)
            if done(state.document):
                break
    return state


def put(url: str, body: bytes = b"", content_type: str = "application/json") -> int:
    request = urllib.request.Request(url, body, {"Content-Type": content_type}, method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(answer.status)


def main() -> None:
    bucket = f"{os.environ['BASE_URL']}/docs-{uuid.uuid4().hex[:8]}"
    url = f"{bucket}/report"
    assert put(bucket) == 201
    with DurableStream.create(url, content_type="application/json") as writer:
        writer.append({"set": "title", "value": "Tides"})
        writer.append({"set": "author", "value": "nobody yet"})

        reader = catch_up(url, State({}, "-1"))
        print("a reader at", reader.offset, reader.document)

        writer.append({"set": "author", "value": "Ada"})
        folded = catch_up(url, reader)
        writer.append({"set": "status", "value": "draft"})
        assert put(f"{url}/snapshot/{folded.offset}", json.dumps(folded.document).encode()) == 204
        print("a snapshot at", folded.offset)

        reader = catch_up(url, reader)
        assert reader.document == {"title": "Tides", "author": "Ada", "status": "draft"}
        print("the reader at", reader.offset, reader.document)

        writer.append({"set": "status", "value": "final"})
        reader = tail(url, reader, lambda document: document["status"] == "final")
        assert reader.document == {"title": "Tides", "author": "Ada", "status": "final"}
        print("and, tailing, at", reader.offset, reader.document)


if __name__ == "__main__":
    main()

"""A reader that survives retention: when its offset is gone (410), it starts over from bootstrap.

With Tidemark's client, and httpx for what lies beside a stream (buckets, snapshots, bootstrap).

    BASE_URL=http://127.0.0.1:4437 python docs/examples/recover_from_410.py
"""

from __future__ import annotations

import email
import json
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import httpx

from tidemark import Stream, StreamGone

Document = dict[str, str]


@dataclass(frozen=True)
class State:
    """The document is a dictionary; an edit sets one of its keys."""

    document: Document
    offset: str


def apply(document: Document, edit: dict[str, str]) -> Document:
    return document | {edit["set"]: edit["value"]}


def bootstrap(url: str) -> State:
    """The document as it is now, and the offset to read on from."""
    answer = httpx.get(f"{url}/bootstrap")
    # A large snapshot is a redirect, whose own headers say where to read on.
    content = httpx.get(answer.headers["Location"]) if answer.has_redirect_location else answer
    head = f"Content-Type: {content.headers['Content-Type']}\r\n\r\n".encode()
    whole = email.message_from_bytes(head + content.raise_for_status().content)
    snapshot, *updates = [part.get_payload(decode=True) for part in whole.get_payload()]  # type: ignore[union-attr]
    has_snapshot = answer.headers["Stream-Snapshot-Offset"] != "-1"
    document = json.loads(snapshot) if has_snapshot else {}
    return State(reduce(apply, map(json.loads, updates), document), answer.headers["Stream-Next-Offset"])


def catch_up(url: str, state: State) -> State:
    """Everything up to the tail, from wherever the reader was; -1 for one that is new."""
    try:
        for chunk in Stream(url).follow(offset=state.offset, live=False):
            state = State(reduce(apply, chunk.messages, state.document), chunk.offset)
    except StreamGone:
        print(f"  {state.offset} is gone: starting over from bootstrap")
        return bootstrap(url)
    return state


def tail(url: str, state: State, done: Callable[[Document], bool]) -> State:
    """Follow the stream until `done` says that the document is as wanted."""
    for chunk in Stream(url).follow(offset=state.offset):
        state = State(reduce(apply, chunk.messages, state.document), chunk.offset)
        if done(state.document):
            break
    return state


def main() -> None:
    bucket = f"{os.environ['BASE_URL']}/docs-{uuid.uuid4().hex[:8]}"
    url = f"{bucket}/report"
    httpx.put(bucket).raise_for_status()
    writer = Stream.create(url, content_type="application/json")
    writer.append({"set": "title", "value": "Tides"})
    writer.append({"set": "author", "value": "nobody yet"})

    reader = catch_up(url, State({}, "-1"))
    print("a reader at", reader.offset, reader.document)

    writer.append({"set": "author", "value": "Ada"})
    folded = catch_up(url, reader)
    writer.append({"set": "status", "value": "draft"})
    httpx.put(f"{url}/snapshot/{folded.offset}", json=folded.document).raise_for_status()
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

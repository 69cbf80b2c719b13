"""What is appended to be weighed: JSON as agents send it, and bytes that nothing makes smaller."""

from __future__ import annotations

import random
from typing import Final

import orjson

_TEXT: Final = (
    "the stream is read from an offset that its last answer gave and the next message comes when it is "
    "written so nothing needs to be asked for twice while a tool call returns its rows with names prices "
    "and dates which the model then puts into words for whoever waits at the other end"
)


def random_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def json_event(size: int, number: int = 0) -> bytes:
    """An event of an agent's session, `size` bytes long: ids, a time, and words."""
    chance = random.Random(number)
    event = {
        "type": "content_block_delta",
        "session": chance.randbytes(16).hex(),
        "message": chance.randbytes(8).hex(),
        "index": number,
        "at": f"2026-01-02T03:{number % 60:02}:{chance.randrange(60):02}.{chance.randrange(1000):03}Z",
        "delta": {"type": "text_delta", "text": ""},
    }
    missing = size - len(orjson.dumps(event))
    text = " ".join(chance.choices(_TEXT.split(), k=max(0, missing)))[: max(0, missing)]
    event["delta"] = {"type": "text_delta", "text": text}
    return orjson.dumps(event)

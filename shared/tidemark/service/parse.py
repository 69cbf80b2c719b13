"""Reading a body as its content type says, where that takes long beside the event loop."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidemark.protocol.messages import ContentType, Messages, parse_messages
from tidemark.service.stores import Stores

#: The worst JSON text of this size takes a few milliseconds.
ON_THE_SPOT_BYTES: Final = 4 * 1024


def parse_body(stores: Stores, content_type: ContentType, body: bytes) -> Messages:
    """Raises as `parse_messages` does."""
    if not content_type.is_json or len(body) <= ON_THE_SPOT_BYTES:
        return parse_messages(content_type, body)
    return stores.concurrency.compute(partial(parse_messages, content_type, body))

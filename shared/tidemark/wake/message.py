"""The wake message: there is something new in this log, from this offset on."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tidemark.log.schema import decode_log_pk, is_log_pk
from tidemark.protocol.stream_key import StreamKey


class NotAWakeMessage(ValueError):
    """A message that `encode_message` did not write."""


@dataclass(frozen=True, slots=True)
class WakeMessage:
    """`start` is where the newest batch begins: a reader that has read further needs no message."""

    log_pk: str
    start: int

    @property
    def key(self) -> StreamKey:
        return decode_log_pk(self.log_pk)[0]

    @property
    def incarnation(self) -> str:
        return decode_log_pk(self.log_pk)[1]


def encode_message(message: WakeMessage) -> str:
    """Plain ASCII: a stream's name may hold characters that no queue accepts."""
    return json.dumps([message.log_pk, message.start], separators=(",", ":"))


def decode_message(body: str) -> WakeMessage:
    """Raises NotAWakeMessage."""
    try:
        log_pk, start = json.loads(body)
    except (ValueError, TypeError):
        raise NotAWakeMessage(body) from None
    if not (isinstance(log_pk, str) and is_log_pk(log_pk) and isinstance(start, int)):
        raise NotAWakeMessage(body)
    return WakeMessage(log_pk, start)

"""Multipart bodies as a real MIME parser reads them: the standard library's."""

import email
from email.message import Message


def parse_parts(content_type: str, body: bytes) -> list[tuple[str, bytes]]:
    """Content type and body of each part, in order. Fails on whatever the parser complains of."""
    whole = email.message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    assert whole.get_content_type() == "multipart/mixed"
    assert whole.is_multipart()
    assert not whole.defects, whole.defects
    return [_part(part) for part in whole.get_payload() if isinstance(part, Message)]


def _part(part: Message) -> tuple[str, bytes]:
    assert not part.is_multipart()
    payload = part.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return str(part["Content-Type"]), payload

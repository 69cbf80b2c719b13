"""Headers that have one value, behind gateways that join repeated headers with a comma."""

from __future__ import annotations

from tidemark.protocol.errors import Malformed


def check_sent_once(name: str, value: str | None) -> None:
    """For headers of free text: a comma in them cannot be told from a repeat. Raises Malformed."""
    if value is not None and "," in value:
        raise Malformed(
            f"{name} must be sent once and must not contain a comma: gateways join repeated headers with one"
        )

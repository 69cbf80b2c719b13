"""Content types: what is one, and when two of them are the same."""

from __future__ import annotations

import pytest

from tidemark.protocol.errors import Malformed
from tidemark.protocol.messages import MAX_LENGTH, parse_content_type


@pytest.mark.parametrize(
    ("header", "essence"),
    [
        ("Application/JSON", "application/json"),
        ("application/json ;charset=utf-8", "application/json"),
        ("  text/plain  ", "text/plain"),
        ("text/plain\t;\tcharset=utf-8", "text/plain"),
        ("application/vnd.api+json", "application/vnd.api+json"),
        ('multipart/mixed; boundary="a b;c"', "multipart/mixed"),
        ("a/b;", "a/b"),
        ("!#$%&'*+.^_`|~-/x", "!#$%&'*+.^_`|~-/x"),
        ("a/" + "b" * (MAX_LENGTH - 2), "a/" + "b" * 253),
    ],
)
def test_the_essence_is_type_and_subtype_in_lower_case(header: str, essence: str) -> None:
    parsed = parse_content_type(header)
    assert (parsed.essence, parsed.value) == (essence, header.strip()), "the value is kept as it was sent"


NO_MEDIA_TYPE = (
    "", " ", "/", "text", "text/", "/plain", "text//plain", "text/plain/x", "text /plain", "text/ plain",
    "text/plain charset=utf-8", "text/plain, text/plain", "te(xt/plain", "text/pläin",
    "text/plain; charset=\u2026", "text/plain; a=\0", "text/plain; a=b\r\nX-Evil: 1", "text/plain; a=b\nx",
    "text/plain\n; a=b", ";charset=utf-8", "a/" + "b" * (MAX_LENGTH - 1),
)  # fmt: skip


@pytest.mark.parametrize("header", NO_MEDIA_TYPE)
def test_a_header_that_is_no_media_type_is_malformed(header: str) -> None:
    """Among them what would break the header that a read answers with."""
    with pytest.raises(Malformed, match="Content-Type"):
        parse_content_type(header)


@pytest.mark.parametrize(
    ("header", "is_json", "is_text"),
    [
        ("APPLICATION/JSON;charset=utf-8", True, True),
        ("application/jsonx", False, False),
        ("application/vnd.api+json", False, False),
        ("application/ndjson", False, False),  # neither text/* nor application/json: base64 (§5.8)
        ("TEXT/csv", False, True),
        ("text/event-stream", False, True),
        ("textual/plain", False, False),
        ("image/svg+xml", False, False),
    ],
)
def test_only_application_json_is_json_and_only_text_types_are_text(
    header: str, is_json: bool, is_text: bool
) -> None:
    parsed = parse_content_type(header)
    assert (parsed.is_json, parsed.is_text) == (is_json, is_text)


ACTIVE = (
    "TEXT/HTML", "application/xhtml+xml", "image/SVG+XML", "text/xml", "application/xml", "text/xsl",
    "multipart/x-mixed-replace", "message/rfc822", "application/pdf", "text/javascript",
    "application/x-shockwave-flash", "text/cache-manifest", "text/event-stream", "x/unknown",
)  # fmt: skip
INERT = (
    "text/plain", "text/csv", "text/markdown", "application/json", "application/ld+json",
    "application/x-ndjson", "image/png", "audio/mpeg", "video/mp4", "application/octet-stream",
)  # fmt: skip


@pytest.mark.parametrize("essence", ACTIVE + INERT)
def test_what_a_browser_might_run_is_active(essence: str) -> None:
    assert parse_content_type(f"{essence}; charset=utf-8").is_active == (essence in ACTIVE)


def test_json_is_served_without_parameters() -> None:
    """§9.1.5: exactly `application/json`; any other type is served as it was given."""
    assert parse_content_type("Application/JSON; charset=latin-1").served == "application/json"
    assert parse_content_type("text/plain; charset=latin-1").served == "text/plain; charset=latin-1"

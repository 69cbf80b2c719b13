"""Content types: what is one, and when two of them are the same."""

from __future__ import annotations

import pytest

from tidemark.protocol.errors import Malformed
from tidemark.protocol.messages import MAX_LENGTH, parse_content_type


@pytest.mark.parametrize(
    ("header", "essence"),
    [
        ("application/json", "application/json"),
        ("Application/JSON", "application/json"),
        ("application/json; charset=utf-8", "application/json"),
        ("application/json;charset=UTF-8", "application/json"),
        ("application/json ;charset=utf-8", "application/json"),
        ("  text/plain  ", "text/plain"),
        ("text/plain\t;\tcharset=utf-8", "text/plain"),
        ("application/vnd.api+json", "application/vnd.api+json"),
        ("application/x-protobuf; messageType=x.Y", "application/x-protobuf"),
        ('multipart/mixed; boundary="a b;c"', "multipart/mixed"),
        ("a/b;", "a/b"),
        ("!#$%&'*+.^_`|~-/x", "!#$%&'*+.^_`|~-/x"),
    ],
)
def test_the_essence_is_type_and_subtype_in_lower_case(header: str, essence: str) -> None:
    assert parse_content_type(header).essence == essence


def test_the_value_is_kept_as_it_was_sent() -> None:
    assert parse_content_type(" Text/Plain; Charset=UTF-8 ").value == "Text/Plain; Charset=UTF-8"


@pytest.mark.parametrize(
    "header",
    [
        "",
        " ",
        "/",
        "text",
        "text/",
        "/plain",
        "text//plain",
        "text/plain/x",
        "text /plain",
        "text/ plain",
        "text/plain charset=utf-8",
        "text/plain, text/plain",
        "text/plain,application/json",
        "te(xt/plain",
        "text/pläin",
        "text/plain; charset=\u2026",
        "text/plain; a=\0",
        "text/plain; a=b\r\nX-Evil: 1",
        "text/plain; a=b\n",
        "text/plain\n; a=b",
        ";charset=utf-8",
        "x" * MAX_LENGTH + "/y",
    ],
)
def test_a_header_that_is_no_media_type_is_malformed(header: str) -> None:
    """Among them what would break the header that a read answers with."""
    if header.endswith("\n"):
        header += "x"  # white space at the end is stripped, as a server does with a header
    with pytest.raises(Malformed, match="Content-Type"):
        parse_content_type(header)


def test_a_content_type_of_255_characters_is_taken_and_one_more_is_refused() -> None:
    assert parse_content_type("a/" + "b" * (MAX_LENGTH - 2)).essence.endswith("b")
    with pytest.raises(Malformed):
        parse_content_type("a/" + "b" * (MAX_LENGTH - 1))


@pytest.mark.parametrize(
    ("header", "is_json", "is_text"),
    [
        ("application/json", True, True),
        ("APPLICATION/JSON;charset=utf-8", True, True),
        ("application/jsonx", False, False),
        ("application/vnd.api+json", False, False),
        ("application/ndjson", False, False),  # neither text/* nor application/json: base64 (§5.8)
        ("application/x-ndjson", False, False),
        ("text/plain", False, True),
        ("TEXT/csv", False, True),
        ("text/event-stream", False, True),
        ("textual/plain", False, False),
        ("application/octet-stream", False, False),
        ("image/svg+xml", False, False),
    ],
)
def test_only_application_json_is_json_and_only_text_types_are_text(
    header: str, is_json: bool, is_text: bool
) -> None:
    parsed = parse_content_type(header)
    assert (parsed.is_json, parsed.is_text) == (is_json, is_text)


ACTIVE = [
    "text/html",
    "TEXT/HTML",
    "application/xhtml+xml",
    "image/svg+xml",
    "text/xml",
    "application/xml",
    "application/rss+xml",
    "text/xsl",
    "multipart/x-mixed-replace",
    "multipart/related",
    "message/rfc822",
    "application/pdf",
    "text/javascript",
    "application/x-shockwave-flash",
    "image/SVG+XML",
    "text/cache-manifest",
    "text/event-stream",
    "x/unknown",
]
INERT = [
    "text/plain",
    "text/csv",
    "text/markdown",
    "application/json",
    "application/ld+json",
    "application/x-ndjson",
    "image/png",
    "audio/mpeg",
    "video/mp4",
    "application/octet-stream",
]


@pytest.mark.parametrize("essence", ACTIVE + INERT)
def test_what_a_browser_might_run_is_active(essence: str) -> None:
    assert parse_content_type(f"{essence}; charset=utf-8").is_active == (essence in ACTIVE)


def test_json_is_served_without_parameters() -> None:
    """§9.1.5: exactly `application/json`; any other type is served as it was given."""
    assert parse_content_type("Application/JSON; charset=latin-1").served == "application/json"
    assert parse_content_type("text/plain; charset=latin-1").served == "text/plain; charset=latin-1"

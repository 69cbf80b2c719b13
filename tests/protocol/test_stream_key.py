"""Names of streams, and that no name can be taken for another."""

from __future__ import annotations

import contextlib
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidemark.protocol.errors import Malformed, StreamNotFound
from tidemark.protocol.stream_key import MAX_STREAM_ID_BYTES, PLAIN_BUCKET, parse_plain_path


def stream_id(path: str, *, encoded: bool = True) -> str:
    key = parse_plain_path(path, encoded=encoded)
    assert key.bucket == PLAIN_BUCKET
    return key.stream_id


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", "a"),
        ("a%20b", "a b"),
        ("a+b", "a+b"),  # a plus is a plus in a path
        ("%E2%82%AC", "€"),
        ("%61", "a"),
        ("%2525", "%25"),  # decoded once, not twice
        ("a%3Fb%23c", "a?b#c"),
        ("a..b", "a..b"),
        ("%5C..", "\\.."),
        ("x/__ds", "x/__ds"),
        ("__dsx", "__dsx"),
        ("café", "café"),
    ],
)
def test_a_path_names_a_stream_with_percent_encoding_decoded_once(path: str, expected: str) -> None:
    assert stream_id(path) == expected


AMBIGUOUS = (
    "",
    "/",
    "a/",
    "/a",
    "a//b",
    ".",
    "..",
    "a/..",
    "../a",
    "a/../b",
    "a/./b",
    "a\0b",
    "a\nb",
    "a\x7f",
)
UNDECODABLE = (
    "%2e", "%2E%2e", "a/%2e%2e/b", "a%2Fb", "%2F", "..%2Fa", "%00", "a%0Ab", "a%1Fb", "a%7F", "%FF", "%C3",
    "%E2%82",
    "%C0%AF",  # "/" in too many bytes
    "%ED%A0%80",  # half of a surrogate pair
    "%F4%90%80%80",  # beyond Unicode
    "a%zz", "100%", "%", "a%2", "%%", "%u0061", "a/%g0",
)  # fmt: skip


@pytest.mark.parametrize("path", AMBIGUOUS + UNDECODABLE)
def test_an_ambiguous_or_undecodable_path_is_malformed(path: str) -> None:
    """Also if the gateway has decoded it."""
    with pytest.raises(Malformed):
        stream_id(path)
    with pytest.raises(Malformed):
        stream_id(path, encoded=False)


@pytest.mark.parametrize("path", ["__ds", "__ds/subscriptions/x", "%5F%5Fds", "__d%73/jwks"])
def test_the_control_paths_are_no_streams(path: str) -> None:
    """§6: however they are spelled."""
    with pytest.raises(StreamNotFound, match="__ds"):
        stream_id(path)
    with pytest.raises(Malformed if "%" in path else StreamNotFound):
        stream_id(path, encoded=False)


@pytest.mark.parametrize(
    "name",
    [
        "x" * MAX_STREAM_ID_BYTES,
        "é" * (MAX_STREAM_ID_BYTES // 2),
        "x/" * (MAX_STREAM_ID_BYTES // 2 - 1) + "xx",
    ],
)
def test_a_name_of_1000_bytes_is_taken_and_more_is_refused(name: str) -> None:
    """Bytes in UTF-8 count, not characters, nor percent signs."""
    assert stream_id(quote(name)) == name
    with pytest.raises(Malformed, match="too long"):
        stream_id(quote(name) + "xx")


@pytest.mark.parametrize("path", ["a b", "€", "a#b", "a+b/c"])
def test_a_path_that_the_gateway_decoded_is_taken_as_it_is(path: str) -> None:
    assert stream_id(path, encoded=False) == path


@pytest.mark.parametrize("path", ["a%2Fb", "100%", "%zz", "a/%E2%82%AC", "a?b", "?", "x\ufffd", "a/\ufffd"])
def test_a_decoded_path_that_may_have_been_another_name_is_refused(path: str) -> None:
    """A percent sign or a question mark that is left was sent encoded twice, and U+FFFD stands for any bytes
    that are no UTF-8."""
    with pytest.raises(Malformed, match="decodes the path"):
        parse_plain_path(path, encoded=False)


names = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)


@given(names)
def test_an_encoded_and_a_decoded_path_name_the_same_stream(name: str) -> None:
    """A name that comes encoded and the same name decoded by the gateway are one stream, or
    are refused alike."""
    assume(not set(name) & set("/%?\ufffd"))
    try:
        through_gateway = stream_id(name, encoded=False)
    except Malformed:
        with pytest.raises(Malformed):
            stream_id(quote(name, safe=""))
    else:
        assert stream_id(quote(name, safe="")) == through_gateway == name


@given(st.lists(names, min_size=1, max_size=4), st.lists(names, min_size=1, max_size=4))
def test_different_segments_are_different_streams(one: list[str], other: list[str]) -> None:
    assume(one != other)
    try:
        ids = [stream_id("/".join(quote(name, safe="") for name in segments)) for segments in (one, other)]
    except (Malformed, StreamNotFound):
        return
    assert ids[0] != ids[1]


@given(st.text(alphabet="%/.\0aF2eE_ds é", max_size=12), st.booleans())
def test_any_path_is_parsed_or_refused_with_an_error_of_the_protocol(path: str, encoded: bool) -> None:
    with contextlib.suppress(Malformed, StreamNotFound):
        stream_id(path, encoded=encoded)

"""Names of streams, plain and in buckets: no name can be taken for another."""

import contextlib
from collections.abc import Callable
from functools import partial
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidemark.protocol import stream_key
from tidemark.protocol.errors import Malformed, ProtocolError, StreamNotFound


def stream_id(path: str, *, encoded: bool = True) -> str:
    key = stream_key.parse_plain_path(path, encoded=encoded)
    assert key.bucket == stream_key.PLAIN_BUCKET
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
    "", "/", "a/", "/a", "a//b", ".", "..", "a/..", "../a", "a/../b", "a/./b", "a\0b", "a\nb", "a\x7f",
)  # fmt: skip
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
    with pytest.raises(Malformed):
        stream_id(path)
    with pytest.raises(Malformed):
        stream_id(path, encoded=False)


@pytest.mark.parametrize("mark", "\u061c\u200e\u200f\u202a\u202e\u2066\u2069")
def test_no_new_stream_has_a_name_that_turns_the_text_around_it(mark: str) -> None:
    key = stream_key.parse_plain_path(f"a/b{mark}c", encoded=False)  # One that is there is found.
    with pytest.raises(Malformed, match=f"must not contain U.{ord(mark):04X}"):
        stream_key.check_new_name(key)
    stream_key.check_new_name(stream_key.StreamKey(stream_key.PLAIN_BUCKET, "שלום"))


@pytest.mark.parametrize("path", ["__ds", "__ds/subscriptions/x", "%5F%5Fds", "__d%73/jwks"])
def test_the_control_paths_are_no_streams(path: str) -> None:
    """§6: however they are spelled."""
    with pytest.raises(StreamNotFound, match="__ds"):
        stream_id(path)
    with pytest.raises(Malformed if "%" in path else StreamNotFound):
        stream_id(path, encoded=False)


@pytest.mark.parametrize("name", ["x" * 1000, "é" * 500, "x/" * 499 + "xx"], ids=["x", "é", "segments"])
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
        stream_key.parse_plain_path(path, encoded=False)


# --- in buckets -----------------------------------------------------------------------


TIDES = partial(stream_key.StreamKey, "tides")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("tides/north", TIDES("north")),
        ("%74ides/Streams", TIDES("Streams")),
        ("tides/snapshot", TIDES("snapshot")),
        ("tides/%E2%82%AC%20%0A", TIDES("€ \n")),
        ("tides/a.b.", TIDES("a.b.")),
        ("x" * 64 + "/a", stream_key.StreamKey("x" * 64, "a")),
        ("tides", None),
        ("tides/streams", None),
        ("tides/%73treams", None),
        ("tides/north/snapshot", None),
    ],
)
def test_one_segment_below_a_bucket_is_a_stream(path: str, expected: stream_key.StreamKey | None) -> None:
    assert stream_key.parse_bucket_stream(path, encoded=True) == expected


INVALID_IDS = (
    "", "abc", "v1x", "x" * 65, "Tides", "tides.", "tid%20es", "tïdes", "tides\n", "tides%0A", "__ds",
    "%5F_ds", "tides/", "tides/..", "tides/a..b", "tides/a%2Fb", "tides/a%00", "tides/%FF",
    "tides/%C3", "abc/north", "tides/x%2e%2e",
)  # fmt: skip


@pytest.mark.parametrize("path", INVALID_IDS)
def test_a_path_with_an_invalid_bucket_or_stream_id_is_malformed(path: str) -> None:
    with pytest.raises(Malformed):
        stream_key.parse_bucket_stream(path, encoded=True)


def test_the_reserved_segment_is_no_stream() -> None:
    with pytest.raises(StreamNotFound, match="__ds"):
        stream_key.parse_bucket_stream("tides/__d%73", encoded=True)


@pytest.mark.parametrize("bucket", ["tides", "x" * 64])
def test_a_key_of_122_bytes_is_taken_and_one_more_is_refused(bucket: str) -> None:
    """Bucket, slash and stream id count, in bytes of UTF-8."""
    room = stream_key.MAX_KEY_BYTES - len(bucket) - 1
    longest = "é" * (room // 2) + "x" * (room % 2)
    assert stream_key.parse_bucket_stream(f"{bucket}/{quote(longest)}", encoded=True) == stream_key.StreamKey(
        bucket, longest
    )
    with pytest.raises(Malformed, match="at most 122 bytes"):
        stream_key.parse_bucket_stream(f"{bucket}/{quote(longest)}x", encoded=True)


def test_a_path_in_a_bucket_that_the_gateway_decoded_is_taken_as_it_is() -> None:
    assert stream_key.parse_bucket_stream("tides/a b#c", encoded=False) == TIDES("a b#c")
    with pytest.raises(Malformed, match="decodes the path"):
        stream_key.parse_bucket_stream("ti%64es/a", encoded=False)


@given(st.integers(-5, 1100))
def test_a_limit_of_a_listing_is_1_to_1000(limit: int) -> None:
    if 1 <= limit <= 1000:
        assert stream_key.parse_listing("", "", limit) == stream_key.ListingRequest("", "", limit)
    else:
        with pytest.raises(Malformed, match="limit"):
            stream_key.parse_listing("", "", limit)


@pytest.mark.parametrize("text", ["a/b", "a\0", "a..b", "x" * 123, "é" * 62])
def test_a_prefix_or_cursor_that_no_stream_id_can_have_is_malformed(text: str) -> None:
    assert stream_key.parse_listing("u", "u-1", 1000) == stream_key.ListingRequest("u", "u-1", 1000)
    with pytest.raises(Malformed, match="prefix"):
        stream_key.parse_listing(text, "", 1)
    with pytest.raises(Malformed, match="after"):
        stream_key.parse_listing("", text, 1)


# --- any path -------------------------------------------------------------------------

Parse = Callable[[str, bool], stream_key.StreamKey | None]
SURFACES: st.SearchStrategy[Parse] = st.sampled_from(
    [
        lambda path, encoded: stream_key.parse_plain_path(path, encoded=encoded),
        lambda path, encoded: stream_key.parse_bucket_stream(f"tides/{path}", encoded=encoded),
    ]
)
names = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)


@given(names.filter(lambda name: not set(name) & set("/%?\ufffd")), SURFACES)
def test_an_encoded_path_and_one_that_the_gateway_decoded_name_the_same(name: str, parse: Parse) -> None:
    try:
        through_gateway = parse(name, False)
    except ProtocolError as refusal:
        with pytest.raises(type(refusal)):
            parse(quote(name, safe=""), True)
    else:
        assert parse(quote(name, safe=""), True) == through_gateway


@given(st.lists(names, min_size=1, max_size=4), st.lists(names, min_size=1, max_size=4))
def test_different_segments_are_different_streams(one: list[str], other: list[str]) -> None:
    assume(one != other)
    try:
        ids = [stream_id("/".join(quote(name, safe="") for name in segments)) for segments in (one, other)]
    except (Malformed, StreamNotFound):
        return
    assert ids[0] != ids[1]


@given(st.text(alphabet="%/.\0aF2etidsnaphou_ é", max_size=30), st.booleans(), SURFACES)
def test_any_path_is_parsed_or_refused_by_the_protocol(path: str, encoded: bool, parse: Parse) -> None:
    with contextlib.suppress(Malformed, StreamNotFound):
        parse(path, encoded)
        stream_key.parse_bucket_stream(path, encoded=encoded)

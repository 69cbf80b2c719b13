"""Paths under a bucket: what they name, and what is refused."""

from __future__ import annotations

import contextlib
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidemark.protocol.bucket import (
    MAX_KEY_BYTES,
    ListingRequest,
    Place,
    Resource,
    parse_bucket_path,
    parse_listing,
)
from tidemark.protocol.errors import Malformed, ProtocolError, RouteNotFound, StreamNotFound


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("tides", Place(Resource.BUCKET, "tides")),
        ("x" * 64, Place(Resource.BUCKET, "x" * 64)),
        ("%74ides", Place(Resource.BUCKET, "tides")),
        ("tides/streams", Place(Resource.LISTING, "tides")),
        ("tides/north", Place(Resource.STREAM, "tides", "north")),
        ("tides/Streams", Place(Resource.STREAM, "tides", "Streams")),
        ("tides/snapshot", Place(Resource.STREAM, "tides", "snapshot")),
        ("tides/%E2%82%AC%20%0A", Place(Resource.STREAM, "tides", "€ \n")),
        ("tides/a.b.", Place(Resource.STREAM, "tides", "a.b.")),
        ("tides/north/snapshot", Place(Resource.LATEST_SNAPSHOT, "tides", "north")),
        ("tides/snapshot/snapshot", Place(Resource.LATEST_SNAPSHOT, "tides", "snapshot")),
        ("tides/north/snapshot/12", Place(Resource.SNAPSHOT, "tides", "north", "12")),
        ("tides/north/snapshot/%31%2F2", Place(Resource.SNAPSHOT, "tides", "north", "1/2")),
        ("tides/north/snapshot/", Place(Resource.SNAPSHOT, "tides", "north", "")),
        ("tides/north/snapshot/12/upload", Place(Resource.UPLOAD, "tides", "north", "12")),
        ("tides/north/bootstrap", Place(Resource.BOOTSTRAP, "tides", "north")),
    ],
)
def test_a_path_names_a_bucket_a_listing_a_stream_or_a_resource_of_it(path: str, expected: Place) -> None:
    assert parse_bucket_path(path, encoded=True) == expected


INVALID_IDS = (
    "", "abc", "v1x", "x" * 65, "Tides", "tides.", "tid%20es", "tïdes", "tides\n", "tides%0A", "__ds",
    "%5F_ds", "tides/", "tides//snapshot", "tides/..", "tides/a..b", "tides/a%2Fb", "tides/a%00", "tides/%FF",
    "tides/%C3", "abc/north", "tides/x%2e%2e",
)  # fmt: skip


@pytest.mark.parametrize("path", INVALID_IDS)
def test_a_path_with_an_invalid_bucket_or_stream_id_is_malformed(path: str) -> None:
    with pytest.raises(Malformed):
        parse_bucket_path(path, encoded=True)


NO_RESOURCE = (
    "tides/north/", "tides/north/x", "tides/north/Snapshot", "tides/north/bootstrap/",
    "tides/north/bootstrap/x", "tides/north/snapshot/1/x", "tides/north/snapshot/1/upload/x",
    "tides/north/snapshot/1/", "tides/streams/x",
)  # fmt: skip


@pytest.mark.parametrize("path", NO_RESOURCE)
def test_a_path_below_a_stream_that_no_resource_has_is_not_found(path: str) -> None:
    with pytest.raises(RouteNotFound):
        parse_bucket_path(path, encoded=True)


@pytest.mark.parametrize("path", ["tides/__ds", "tides/__d%73/snapshot"])
def test_the_reserved_segment_is_no_stream(path: str) -> None:
    with pytest.raises(StreamNotFound, match="__ds"):
        parse_bucket_path(path, encoded=True)


@pytest.mark.parametrize("bucket", ["tides", "x" * 64])
def test_a_key_of_122_bytes_is_taken_and_one_more_is_refused(bucket: str) -> None:
    """Bucket, slash and stream id count, in bytes of UTF-8."""
    room = MAX_KEY_BYTES - len(bucket) - 1
    longest = "é" * (room // 2) + "x" * (room % 2)
    assert parse_bucket_path(f"{bucket}/{quote(longest)}", encoded=True).stream_id == longest
    with pytest.raises(Malformed, match="at most 122 bytes"):
        parse_bucket_path(f"{bucket}/{quote(longest)}x", encoded=True)


def test_a_path_that_the_gateway_decoded_is_taken_as_it_is() -> None:
    """A slash divides."""
    assert parse_bucket_path("tides/a b#c", encoded=False).stream_id == "a b#c"
    assert parse_bucket_path("tides/a/snapshot/1", encoded=False).offset_token == "1"
    with pytest.raises(Malformed, match="decodes the path"):
        parse_bucket_path("ti%64es/a", encoded=False)


# --- listings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit", ["0", "-1", "1001", "abc", "", "1.0", "+1", "01", " 1", "1e3", "10000", "٣"]
)
def test_a_limit_outside_of_1_to_1000_is_malformed(limit: str) -> None:
    with pytest.raises(Malformed, match="limit"):
        parse_listing(None, None, limit)


@pytest.mark.parametrize("text", ["a/b", "a\0", "a..b", "x" * 123, "é" * 62])
def test_a_prefix_or_cursor_that_no_stream_id_can_have_is_malformed(text: str) -> None:
    with pytest.raises(Malformed, match="prefix"):
        parse_listing(text, None, None)
    with pytest.raises(Malformed, match="after"):
        parse_listing(None, text, None)


def test_a_listing_has_a_prefix_a_cursor_and_a_limit_with_defaults() -> None:
    assert parse_listing(None, None, None) == ListingRequest("", "", 1000)
    assert parse_listing("u", "u-1", "1") == ListingRequest("u", "u-1", 1)
    assert parse_listing("", "", "1000") == ListingRequest("", "", 1000)


# --- any path -------------------------------------------------------------------------

ids = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)


@given(ids)
def test_an_encoded_and_a_decoded_path_name_the_same_place(stream_id: str) -> None:
    assume(not set(stream_id) & set("/%?\ufffd"))
    try:
        through_gateway = parse_bucket_path(f"tides/{stream_id}", encoded=False)
    except ProtocolError as refusal:
        with pytest.raises(type(refusal)):
            parse_bucket_path(f"tides/{quote(stream_id, safe='')}", encoded=True)
    else:
        assert parse_bucket_path(f"tides/{quote(stream_id, safe='')}", encoded=True) == through_gateway


@given(st.text(alphabet="%/.\0aF2etidsnaphou_ é", max_size=30), st.booleans())
def test_any_path_is_parsed_or_refused_with_an_error_of_the_protocol(path: str, encoded: bool) -> None:
    with contextlib.suppress(Malformed, StreamNotFound, RouteNotFound):
        parse_bucket_path(path, encoded=encoded)

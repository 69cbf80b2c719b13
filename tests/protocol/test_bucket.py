"""Paths under a bucket: what they name, and what is refused."""

from __future__ import annotations

import contextlib
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidemark.protocol.bucket import MAX_KEY_BYTES, Place, Resource, parse_bucket_path
from tidemark.protocol.errors import Malformed, ProtocolError, RouteNotFound, StreamNotFound


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("tides", Place(Resource.BUCKET, "tides")),
        ("a-_9", Place(Resource.BUCKET, "a-_9")),
        ("x" * 64, Place(Resource.BUCKET, "x" * 64)),
        ("%74ides", Place(Resource.BUCKET, "tides")),
        ("tides/streams", Place(Resource.LISTING, "tides")),
        ("tides/%73treams", Place(Resource.LISTING, "tides")),
        ("tides/north", Place(Resource.STREAM, "tides", "north")),
        ("tides/Streams", Place(Resource.STREAM, "tides", "Streams")),
        ("tides/snapshot", Place(Resource.STREAM, "tides", "snapshot")),
        ("tides/bootstrap", Place(Resource.STREAM, "tides", "bootstrap")),
        ("tides/upload", Place(Resource.STREAM, "tides", "upload")),
        ("tides/v1", Place(Resource.STREAM, "tides", "v1")),
        ("tides/%E2%82%AC%20%0A", Place(Resource.STREAM, "tides", "€ \n")),
        ("tides/a.b.", Place(Resource.STREAM, "tides", "a.b.")),
        ("tides/north/snapshot", Place(Resource.LATEST_SNAPSHOT, "tides", "north")),
        ("tides/snapshot/snapshot", Place(Resource.LATEST_SNAPSHOT, "tides", "snapshot")),
        ("tides/north/snapshot/12", Place(Resource.SNAPSHOT, "tides", "north", "12")),
        ("tides/north/snapshot/%31%2F2", Place(Resource.SNAPSHOT, "tides", "north", "1/2")),
        ("tides/north/snapshot/", Place(Resource.SNAPSHOT, "tides", "north", "")),
        ("tides/north/snapshot/12/upload", Place(Resource.UPLOAD, "tides", "north", "12")),
        ("tides/north/bootstrap", Place(Resource.BOOTSTRAP, "tides", "north")),
        ("tides/bootstrap/bootstrap", Place(Resource.BOOTSTRAP, "tides", "bootstrap")),
    ],
)
def test_a_path_names_a_bucket_a_listing_a_stream_or_a_resource_of_it(path: str, expected: Place) -> None:
    assert parse_bucket_path(path, encoded=True) == expected


@pytest.mark.parametrize(
    "path",
    [
        "",
        "abc",
        "v1x",
        "x" * 65,
        "Tides",
        "tides.",
        "tid%20es",
        "tïdes",
        "tides\n",
        "tides%0A",
        "__ds",
        "%5F_ds",
        "tides/",
        "tides//snapshot",
        "tides/..",
        "tides/a..b",
        "tides/a%2Fb",
        "tides/a%00",
        "tides/%FF",
        "tides/%C3",
        "abc/north",
        "tides/" + "x" * (MAX_KEY_BYTES - 5),
        "tides/" + "%C3%A9" * 59,
        "tides/x%2e%2e",
    ],
)
def test_a_path_with_an_invalid_bucket_or_stream_id_is_malformed(path: str) -> None:
    with pytest.raises(Malformed):
        parse_bucket_path(path, encoded=True)


@pytest.mark.parametrize(
    "path",
    [
        "tides/north/",
        "tides/north/x",
        "tides/north/Snapshot",
        "tides/north/bootstrap/",
        "tides/north/bootstrap/x",
        "tides/north/snapshot/1/x",
        "tides/north/snapshot/1/upload/x",
        "tides/north/snapshot/1/",
        "tides/streams/x",
    ],
)
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


@pytest.mark.parametrize(
    "path", ["tides/100%", "tides/a?b", "ti%64es/a", "tides/x\ufffd", "tides/a/snapshot/%31"]
)
def test_a_decoded_path_that_may_have_been_another_one_is_refused(path: str) -> None:
    with pytest.raises(Malformed, match="decodes the path"):
        parse_bucket_path(path, encoded=False)


@pytest.mark.parametrize("path", ["tides/a%zz", "tides/100%", "tides/a/snapshot/%"])
def test_a_percent_sign_that_encodes_nothing_is_refused(path: str) -> None:
    with pytest.raises(Malformed, match="%25"):
        parse_bucket_path(path, encoded=True)


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

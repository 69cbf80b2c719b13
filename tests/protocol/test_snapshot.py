"""Where a snapshot may be taken, and in which order a publish is refused."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.bucket import ListingRequest, parse_listing
from tidemark.protocol.errors import Malformed, OffsetBeyondTail, RetentionGone
from tidemark.protocol.offset import render_offset
from tidemark.protocol.snapshot import (
    UploadId,
    check_boundary,
    check_retained,
    parse_snapshot_offset,
    parse_upload_id,
)


@pytest.mark.parametrize(
    "token", ["-1", "now", "", "0", "12", "000000000000000x", "0" * 17, " " + "0" * 16, "٠" * 16]
)
def test_a_token_that_is_no_offset_is_malformed(token: str) -> None:
    with pytest.raises(Malformed):
        parse_snapshot_offset(token)


@given(st.integers(0, 10**16 - 1))
def test_a_snapshots_offset_is_a_rendered_offset(offset: int) -> None:
    assert parse_snapshot_offset(render_offset(offset)) == offset


@given(st.integers(0, 50), st.lists(st.integers(1, 5), max_size=6), st.integers(0, 100))
def test_a_snapshot_is_taken_only_where_a_message_ends(start: int, lengths: list[int], ahead: int) -> None:
    offset, ends = start + ahead, list(accumulate(lengths, initial=start))
    if offset in ends:
        check_boundary(offset, start, lengths)
    else:
        with pytest.raises(OffsetBeyondTail if offset > ends[-1] else Malformed):
            check_boundary(offset, start, lengths)


def test_an_offset_beyond_the_tail_gets_409_and_the_tail() -> None:
    with pytest.raises(OffsetBeyondTail) as refused:
        check_boundary(9, 4, (1, 2))
    assert (refused.value.status, refused.value.headers) == (409, {"Stream-Next-Offset": render_offset(7)})


@pytest.mark.parametrize(("offset", "retained"), [(0, 0), (5, 5), (6, 5)])
def test_an_offset_at_or_after_what_is_retained_is_accepted(offset: int, retained: int) -> None:
    check_retained(offset, retained)


def test_an_offset_below_what_is_retained_gets_410_and_where_to_continue() -> None:
    with pytest.raises(RetentionGone) as refused:
        check_retained(4, 5)
    assert (refused.value.status, refused.value.headers) == (410, {"Stream-Next-Offset": render_offset(5)})


@given(st.integers(0, 10**16 - 1), st.text(alphabet="aZ09-_", min_size=1, max_size=64))
def test_a_rendered_upload_id_is_parsed_to_the_same_id(lapses_ms: int, mark: str) -> None:
    assert parse_upload_id(str(UploadId(lapses_ms, mark))) == UploadId(lapses_ms, mark)


@pytest.mark.parametrize(
    "value",
    ["", "x", "0" * 16, "0" * 16 + "-", "0" * 16 + "-a/b", "0" * 15 + "-abc", "0" * 16 + "-" + "x" * 65],
)
def test_an_upload_id_in_any_other_form_is_malformed(value: str) -> None:
    with pytest.raises(Malformed, match="Snapshot-Upload"):
        parse_upload_id(value)


def test_without_the_header_there_is_no_upload() -> None:
    assert parse_upload_id(None) is None


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

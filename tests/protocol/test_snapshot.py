"""Where a snapshot may be taken, and in which order a publish is refused."""

from collections.abc import Iterable
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mime import parse_parts
from tidemark.protocol import snapshot
from tidemark.protocol.errors import Malformed, OffsetBeyondTail, RetentionGone
from tidemark.protocol.offset import render_offset

#: What is dangerous in a part: line ends, dashes, and what looks like a boundary or a header.
PIECES = [
    b"\r\n", b"\n", b"\r", b"--", b"tidemark-", b"--tidemark-0", b": ", b"Content-Type: a/b", b"\0", b"\xff",
]  # fmt: skip
bodies = st.binary(max_size=40) | st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join)
parts = st.builds(
    snapshot.Part, st.sampled_from(["application/octet-stream", "application/json", 'a/b; c="d"']), bodies
)


@given(st.lists(parts, min_size=1, max_size=5))
def test_an_independent_parser_finds_the_same_parts(given_parts: list[snapshot.Part]) -> None:
    boundary = snapshot.choose_boundary(given_parts)
    assert not any(boundary.encode() in part.body for part in given_parts)
    assert len(boundary) <= 70, "RFC 2046 allows no more"
    assert boundary == snapshot.choose_boundary(given_parts), "the same answer has the same boundary"
    body = snapshot.render_multipart(given_parts, boundary)
    found = parse_parts(f"multipart/mixed; boundary={boundary}", body)
    assert found == [(part.content_type, part.body) for part in given_parts]
    assert (
        len(body)
        == sum(snapshot.part_bytes(p.content_type, len(p.body)) for p in given_parts) + len(boundary) + 6
    )


def test_a_boundary_that_occurs_in_a_part_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a digest that can be foreseen, so that a part can contain it."""

    def foreseen(_parts: Iterable[snapshot.Part], attempt: int) -> str:
        return f"{attempt:032d}"

    monkeypatch.setattr(snapshot, "_digest", foreseen)
    one, two, three, free = (f"tidemark-{attempt:032d}" for attempt in range(4))
    hostile = [
        snapshot.Part("a/b", b"..." + one.encode()),
        snapshot.Part("a/b", two.encode()),
        snapshot.Part(f"a/b; c={three}", b""),
    ]
    assert snapshot.choose_boundary(hostile) == free


def test_the_bytes_around_a_body_are_rendered_without_the_body() -> None:
    around = snapshot.open_part("b", "a/b", {"X": "1"}) + b"body" + snapshot.close_parts("b")
    assert around == b"--b\r\nContent-Type: a/b\r\nX: 1\r\n\r\nbody\r\n--b--\r\n"
    assert snapshot.render_multipart([snapshot.Part("a/b", b"body")], "b") == around.replace(b"X: 1\r\n", b"")


@pytest.mark.parametrize(
    "token", ["-1", "now", "", "0", "12", "000000000000000x", "0" * 17, " " + "0" * 16, "٠" * 16]
)
def test_a_token_that_is_no_offset_is_malformed(token: str) -> None:
    with pytest.raises(Malformed):
        snapshot.parse_snapshot_offset(token)
    assert snapshot.parse_snapshot_offset(render_offset(12)) == 12


@given(st.integers(0, 50), st.lists(st.integers(1, 5), max_size=6), st.integers(0, 100))
def test_a_snapshot_is_taken_only_where_a_message_ends(start: int, lengths: list[int], ahead: int) -> None:
    offset, ends = start + ahead, list(accumulate(lengths, initial=start))
    if offset in ends:
        snapshot.check_boundary(offset, ends)
    else:
        with pytest.raises(OffsetBeyondTail if offset > ends[-1] else Malformed):
            snapshot.check_boundary(offset, ends)


def test_an_offset_that_is_not_there_is_refused_with_where_to_continue() -> None:
    snapshot.check_retained(5, 5)
    with pytest.raises(OffsetBeyondTail) as beyond:
        snapshot.check_boundary(9, [4, 5, 7])
    assert (beyond.value.status, beyond.value.headers) == (409, {"Stream-Next-Offset": render_offset(7)})
    with pytest.raises(RetentionGone) as gone:
        snapshot.check_retained(4, 5)
    assert (gone.value.status, gone.value.headers) == (410, {"Stream-Next-Offset": render_offset(5)})


@given(st.integers(0, 10**16 - 1), st.text(alphabet="aZ09-_", min_size=1, max_size=64))
def test_a_rendered_upload_id_is_parsed_to_the_same_id(lapses_ms: int, mark: str) -> None:
    made = snapshot.UploadId(lapses_ms, mark)
    assert snapshot.parse_upload_id(str(made)) == made
    assert snapshot.parse_upload_id(None) is None


@pytest.mark.parametrize(
    "value",
    ["", "x", "0" * 16, "0" * 16 + "-", "0" * 16 + "-a/b", "0" * 15 + "-abc", "0" * 16 + "-" + "x" * 65],
)
def test_an_upload_id_in_any_other_form_is_malformed(value: str) -> None:
    with pytest.raises(Malformed, match="Snapshot-Upload"):
        snapshot.parse_upload_id(value)

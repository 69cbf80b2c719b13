"""Parts come back byte for byte, whatever is in them, and no boundary occurs in any."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mime import parse_parts
from tidemark.protocol import snapshot
from tidemark.protocol.snapshot import (
    Part,
    choose_boundary,
    close_parts,
    open_part,
    part_bytes,
    render_multipart,
)

#: What is dangerous in a part: line ends, dashes, and what looks like a boundary or a header.
pieces = st.sampled_from(
    [
        b"\r\n",
        b"\n",
        b"\r",
        b"--",
        b"tidemark-",
        b"--tidemark-0",
        b": ",
        b"Content-Type: a/b",
        b"\0",
        b"\xff",
        b"x",
    ]
)
bodies = st.one_of(st.binary(max_size=40), st.lists(pieces, max_size=8).map(b"".join))
parts = st.builds(
    Part, st.sampled_from(["application/octet-stream", "application/json", 'a/b; c="d"']), bodies
)


def split(boundary: str, body: bytes) -> list[tuple[bytes, bytes]]:
    """As RFC 2046 §5.1.1 has it, in a few lines: headers and body of each part."""
    delimiter = b"\r\n--" + boundary.encode()
    head, *sections = (b"\r\n" + body).split(delimiter)
    assert head == b""
    assert sections.pop() == b"--\r\n"
    assert all(section.startswith(b"\r\n") for section in sections)
    split_sections = [section[2:].split(b"\r\n\r\n", 1) for section in sections]
    return [(headers, content) for headers, content in split_sections]


@given(st.lists(parts, min_size=1, max_size=5))
def test_every_byte_of_the_parts_comes_back(given_parts: list[Part]) -> None:
    boundary = choose_boundary(given_parts)
    body = render_multipart(given_parts, boundary)
    found = split(boundary, body)
    assert [content for _, content in found] == [part.body for part in given_parts]
    expected = [f"Content-Type: {part.content_type}".encode() for part in given_parts]
    assert [headers for headers, _ in found] == expected
    assert len(body) == sum(part_bytes(p.content_type, len(p.body)) for p in given_parts) + len(boundary) + 6


@given(st.lists(parts, min_size=1, max_size=5))
def test_an_independent_parser_finds_the_same_parts(given_parts: list[Part]) -> None:
    boundary = choose_boundary(given_parts)
    found = parse_parts(f"multipart/mixed; boundary={boundary}", render_multipart(given_parts, boundary))
    assert found == [(part.content_type, part.body) for part in given_parts]


@given(st.lists(parts, min_size=1, max_size=5))
def test_the_boundary_is_nowhere_in_the_parts(given_parts: list[Part]) -> None:
    boundary = choose_boundary(given_parts)
    assert not any(boundary.encode() in part.body for part in given_parts)
    assert len(boundary) <= 70, "RFC 2046 allows no more"
    assert boundary == choose_boundary(given_parts), "the same answer has the same boundary"


def test_a_boundary_that_occurs_in_a_part_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a digest that can be foreseen, so that a part can contain it."""

    def foreseen(_parts: Iterable[Part], attempt: int) -> str:
        return f"{attempt:032d}"

    monkeypatch.setattr(snapshot, "_digest", foreseen)
    taken = [f"tidemark-{attempt:032d}" for attempt in range(3)]
    hostile = [
        Part("a/b", b"..." + taken[0].encode()),
        Part("a/b", taken[1].encode()),
        Part(f"a/b; c={taken[2]}", b""),
    ]
    assert choose_boundary(hostile) == f"tidemark-{3:032d}"


def test_the_bytes_around_a_body_are_rendered_without_the_body() -> None:
    """For a body that nobody here ever holds."""
    around = open_part("b", "a/b", {"X": "1"}) + b"body" + close_parts("b")
    assert around == b"--b\r\nContent-Type: a/b\r\nX: 1\r\n\r\nbody\r\n--b--\r\n"
    assert render_multipart([Part("a/b", b"body")], "b") == around.replace(b"X: 1\r\n", b"")

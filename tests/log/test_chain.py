"""The walk along a chain, over a table made of numbers: any logs, any pages, any bounds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.log.chain import ChainWalk, Span
from tidemark.protocol.offset import render_offset

pytestmark = pytest.mark.each_engine


@dataclass(frozen=True)
class Piece:
    """The part of a batch that a walk reads."""

    start: int
    end: int


@dataclass
class Logs:
    """Batches by partition, answered in pages of `page_items`, as `Table.query` does."""

    pieces: dict[str, list[Piece]]
    page_items: int
    queries: list[str] = field(default_factory=list)

    def query(
        self,
        pk: str,
        *,
        at_least: str = "0",
        at_most: str = "~",
        limit: int | None = None,
        backward: bool = False,
    ) -> tuple[Sequence[Any], bool]:
        self.queries.append(pk)
        found = [each for each in self.pieces[pk] if at_least <= render_offset(each.start) <= at_most]
        if backward:
            found.reverse()
        count = limit or self.page_items
        return found[:count], len(found) > count


@st.composite
def chains(draw: st.DrawFn) -> tuple[Logs, list[Span]]:
    """A stream and the sources that it was forked from, each beyond where the next one left it."""
    logs: dict[str, list[Piece]] = {}
    spans: list[Span] = []
    begin = 0
    generations = draw(st.integers(1, 3))
    for generation in range(generations):
        sizes = draw(st.lists(st.integers(1, 4), min_size=generation < generations - 1, max_size=6))
        edges = [begin]
        for size in sizes:
            edges.append(edges[-1] + size)
        logs[str(generation)] = [Piece(*edge) for edge in pairwise(edges)]
        is_last = generation == generations - 1
        end = None if is_last else draw(st.integers(begin + 1, edges[-1]))
        spans.append(Span(str(generation), str(generation), begin, end))
        begin = begin if end is None else end
    return Logs(logs, draw(st.integers(1, 4))), spans


def expected(logs: Logs, spans: list[Span], start: int) -> list[Piece]:
    """Every batch of every span that holds a byte from `start` on, or ends at `start` and so proves it."""
    found: list[Piece] = []
    for span in spans:
        inside = [piece for piece in logs.pieces[span.pk] if span.end is None or piece.start < span.end]
        found += [piece for piece in inside if piece.end > start]
    return found


def tail_of(logs: Logs, spans: list[Span]) -> int:
    own = logs.pieces[spans[-1].pk]
    return own[-1].end if own else spans[-1].begin


@given(chains(), st.data())
def test_a_walk_gives_each_batch_once_in_order(chain: tuple[Logs, list[Span]], data: st.DataObject) -> None:
    logs, spans = chain
    start = data.draw(st.integers(0, tail_of(logs, spans)))
    ahead = [span for span in spans if span.end is None or span.end > start]
    gaps: list[tuple[int, int]] = []
    walk = ChainWalk(logs.query, iter, ahead, start, on_gap=lambda *gap: gaps.append(gap))
    found = [piece for piece in walk if piece.end > start]
    assert found == expected(logs, ahead, start)
    assert walk.at_tail
    assert not gaps


@given(chains(), st.data())
def test_a_walk_asks_for_no_batch_nobody_takes(chain: tuple[Logs, list[Span]], data: st.DataObject) -> None:
    """A reader that stops at a batch has made the queries up to it, and knows whether it was the last."""
    logs, spans = chain
    everything = expected(logs, spans, 0)
    if not everything:
        return
    count = data.draw(st.integers(1, len(everything)))
    walk = ChainWalk(logs.query, iter, spans, 0)
    taken = list(islice(walk, count))
    assert taken == everything[:count]
    made = len(logs.queries)
    assert walk.at_tail <= (count == len(everything))
    rest = list(ChainWalk(logs.query, iter, spans, 0))[count:]
    assert rest == everything[count:]
    assert made <= len(logs.queries) - made


@given(chains(), st.data())
def test_a_walk_reports_exactly_missing_bytes(chain: tuple[Logs, list[Span]], data: st.DataObject) -> None:
    """As in a partition of a bulk read: one span, one of whose batches is missing."""
    logs, spans = chain
    span = spans[-1]
    own = logs.pieces[span.pk]
    if not own:
        return
    lost = data.draw(st.sampled_from(own))
    start = data.draw(st.integers(span.begin, own[-1].end - 1))
    until = data.draw(st.integers(start + 1, own[-1].end))
    logs.pieces[span.pk] = [piece for piece in own if piece != lost]
    gaps: list[tuple[int, int]] = []
    walk = ChainWalk(logs.query, iter, [span], start, until=until, on_gap=lambda *gap: gaps.append(gap))
    found = [piece for piece in walk if piece.end > start]
    assert found == [piece for piece in own if piece != lost and piece.end > start and piece.start < until]
    missing = {place for low, high in gaps for place in range(low, min(high, until))}
    assert missing == set(range(max(lost.start, start), min(lost.end, until)))


@given(chains(), st.integers(1, 3))
def test_a_walk_ends_at_its_limit_of_queries(chain: tuple[Logs, list[Span]], max_queries: int) -> None:
    logs, spans = chain
    walk = ChainWalk(logs.query, iter, spans, 0, max_queries=max_queries)
    found = list(walk)
    everything = expected(logs, spans, 0)
    assert found == everything[: len(found)]
    assert all(logs.queries.count(span.pk) <= max_queries for span in spans)
    assert walk.at_tail or logs.queries.count(walk.span.pk) == max_queries
    assert not walk.at_tail or found == everything


def test_known_batches_cost_no_query() -> None:
    logs = Logs({"source": [Piece(0, 2), Piece(2, 4)], "own": [Piece(3, 5)]}, page_items=10)
    spans = [Span("source", "s", 0, 3), Span("own", "o", 3, None)]
    known = {"s": [Piece(0, 2), Piece(2, 4)], "o": []}
    walk = ChainWalk(logs.query, iter, spans, 0, known=lambda log, _begin: known[log])
    assert list(walk) == [Piece(0, 2), Piece(2, 4), Piece(3, 5)]
    assert logs.queries == ["own"]


def test_an_offset_at_the_tail_is_proven_by_the_batch_before_it() -> None:
    """No batch begins at the tail, so the walk returns the batch that ends there; within a batch, it returns
    that batch."""
    logs = Logs({"own": [Piece(0, 2), Piece(2, 4)]}, page_items=10)
    spans = [Span("own", "o", 0, None)]
    assert list(ChainWalk(logs.query, iter, spans, 4)) == [Piece(2, 4)]
    assert list(ChainWalk(logs.query, iter, spans, 1)) == [Piece(0, 2), Piece(2, 4)]
    assert list(ChainWalk(logs.query, iter, spans, 4, looks_back=False)) == []


def test_a_batch_is_decoded_only_when_its_reader_takes_it() -> None:
    """The deflated items of one query may be many pages of bytes."""
    logs = Logs({"own": [Piece(0, 2), Piece(2, 4), Piece(4, 6)]}, page_items=10)
    decoded: list[Piece] = []

    def decode(items: Sequence[Any]) -> Any:
        for item in items:
            decoded.append(item)
            yield item

    assert next(iter(ChainWalk(logs.query, decode, [Span("own", "o", 0, None)], 0))) == Piece(0, 2)
    assert decoded == [Piece(0, 2)]

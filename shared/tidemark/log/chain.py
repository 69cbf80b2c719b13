"""Walking the chain: what a stream's batches are, in order, and which query finds the next ones.

A batch says where it ends, and that is where the next one begins (`docs/design.md`, §1). So one
rule reads a log from anywhere: ask for the sort keys from `start` on, and then for those behind
the last batch that was found. Three things are added to it:

- a start inside a batch: that batch has a lower key, and is found by one query backward;
- a fork: its chain goes through the logs that it inherits, each up to where the fork left it;
- a gap: where a batch begins beyond the end of the one before it, something is missing.

This module makes no call of its own and decodes nothing. Its callers hand it the query and the
decoder: the server's read decodes all that a writer must know (`log/read.py`), a bulk read the
few attributes that make a row (`spark/readers/dynamodb.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import Any, Final, Generic, Protocol, TypeVar

from tidemark.log.records import Batch, StreamRecord
from tidemark.log.schema import just_behind, log_pk
from tidemark.protocol.offset import render_offset
from tidemark.protocol.tail import Tail

#: Sorts after every offset.
_LAST_KEY: Final = "~"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one log that a stream consists of; `end` None is the stream's own log,
    which goes on. A plain stream is one span, a fork has one more for each generation."""

    pk: str
    incarnation: str
    begin: int
    end: int | None


def spans_of(record: StreamRecord) -> list[Span]:
    spans, begin = [], 0
    for segment in record.lineage:
        pk = log_pk(segment.key, segment.incarnation)
        spans.append(Span(pk, segment.incarnation, begin, segment.end))
        begin = segment.end
    spans.append(Span(log_pk(record.key, record.incarnation), record.incarnation, begin, None))
    return spans


class Link(Protocol):
    """What a walk needs to know of a batch."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


LinkT = TypeVar("LinkT", bound=Link)
Query = Callable[..., tuple[Sequence[Any], bool]]
"""`Table.query`: some of a partition's items between two sort keys, and whether there are more."""


def _none_known(_span: Span, _begin: int) -> Sequence[Any]:
    return ()


def _ignore_gap(_begin: int, _end: int) -> None:
    pass


class ChainWalk(Generic[LinkT]):
    """The batches of `spans` from `start` on, in order, and before them the one that `start` lies
    in. Where no batch begins at `start`, the batch before it is yielded even if it ends there: it proves
    that the offset is in the stream.

    A query is made only when the batches found so far are used up, and a batch is decoded only
    when it is its turn: a reader that has enough stops, and pays for no more.

    `known(span, begin)` are batches that need no query. `until` bounds the walk: batches that
    begin there or later are left out. `max_queries` is the most for one span; then the walk ends,
    and `at_tail` says that it is not at the tail. `on_gap` gets the bounds of what is missing.
    """

    def __init__(
        self,
        query: Query,
        decode: Callable[[Sequence[Any]], Iterable[LinkT]],
        spans: Sequence[Span],
        start: int,
        *,
        until: int | None = None,
        known: Callable[[Span, int], Sequence[LinkT]] = _none_known,
        looks_back: bool = True,
        max_queries: int | None = None,
        on_gap: Callable[[int, int], None] = _ignore_gap,
    ) -> None:
        self._query = query
        self._decode = decode
        self._spans = spans
        self._start = start
        self._until = until
        self._known = known
        self._looks_back = looks_back
        self._max_queries = max_queries
        self._on_gap = on_gap
        #: Items of the last query that were not yielded yet, and whether there are more in the table.
        self._left, self._has_more = 0, True
        #: The span of the batch that was yielded last.
        self.span = spans[0]

    @property
    def at_tail(self) -> bool:
        """Whether nothing followed the batch that was yielded last."""
        return self.span.end is None and not self._has_more and self._left == 0

    @property
    def has_items_left(self) -> bool:
        """Whether the next batch costs no query."""
        return self._left > 0

    def __iter__(self) -> Iterator[LinkT]:
        reached = self._start
        for span in self._spans:
            self.span = span
            begin = max(self._start, span.begin)
            stop = min((end for end in (span.end, self._until) if end is not None), default=None)
            # A batch may reach beyond the end of its span.
            reached = min(reached, begin)
            page: Iterable[LinkT] = self._known(span, begin)
            last: LinkT | None = None
            self._has_more = True
            for queries in count():
                for last in page:
                    if last.start > reached:
                        self._on_gap(reached, last.start)
                    end = last.end
                    if end > reached:  # noqa: PLR1730 - max() for every batch costs a bulk read 3 %
                        reached = end
                    self._left -= 1
                    yield last
                if not self._has_more or (stop is not None and reached >= stop):
                    break
                if queries == self._max_queries:
                    return
                page = self._ask(begin, stop, last)
        if self._until is not None and reached < self._until:
            self._on_gap(reached, self._until)

    def _ask(self, begin: int, stop: int | None, last: LinkT | None) -> Iterable[LinkT]:
        """The batches of the span's next query, the one behind `last`."""
        pk = self.span.pk
        at_least = render_offset(begin) if last is None else just_behind(last.start)
        at_most = _LAST_KEY if stop is None else render_offset(stop - 1)
        items, self._has_more = self._query(pk, at_least=at_least, at_most=at_most)
        self._left = len(items)
        batches = iter(self._decode(items))
        if last is not None or begin == self.span.begin or not self._looks_back:
            return batches
        first = list(islice(batches, 1))
        if first and first[0].start == begin:
            return chain(first, batches)
        # A batch that begins at `begin` may have come since: the one before it is asked for.
        before, _ = self._query(pk, at_most=render_offset(begin - 1), limit=1, backward=True)
        self._left += len(before)
        return chain(self._decode(before), first, batches)


def cut_batch(batch: Batch, end: int | None) -> Batch:
    """What a fork inherits of a batch. The fork may begin in the middle of it; it never inherits the
    state of the source's writers, nor that the source was closed."""
    if end is None:
        return batch
    cut_end = min(batch.end, end)
    size = cut_end - batch.start
    return replace(
        batch,
        after=Tail(cut_end),
        data=None if batch.data is None else batch.data[:size],
        blob_bytes=batch.size,
        lengths=cut_lengths(batch.lengths, size),
    )


def cut_lengths(lengths: Sequence[int], size: int) -> tuple[int, ...]:
    """The lengths of the messages in the first `size` bytes; the last may be a part."""
    kept, left = [], size
    for length in lengths:
        if left <= 0:
            break
        kept.append(min(length, left))
        left -= length
    return tuple(kept)

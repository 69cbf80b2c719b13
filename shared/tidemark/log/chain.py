"""Walking the chain: finds a stream's batches in order, and the query for the next ones.

A batch says where it ends, and that is where the next one begins (`docs/design.md`, §1). So one
rule reads a log from anywhere: ask for the sort keys from `start` on, and then for those behind
the last batch that was found. Four cases are added to it:

- a start inside a batch: that batch has a lower key, and is found by one query backward;
- a fork: its chain goes through the logs that it inherits, each up to where the fork left it;
- a pack, which replaces the batches of [a, b) by one at `a` that ends at `b` (`docs/internals/packs.md`).
  While those are being removed, the walk skips the ones that are left. If a batch that the walk expected is
  gone, one query backward finds the pack;
- a gap: where a batch begins beyond the end of the one before it, and no pack is there, something is missing.

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
#: The most entries between a removed batch and the pack that replaced it: as many as one call removes
#: (`janitor/replace.py`), and twice that if two runs remove at the same time.
MOST_BEHIND: Final = 100


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
    """The attributes of a batch that a walk reads."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


LinkT = TypeVar("LinkT", bound=Link)
Query = Callable[..., tuple[Sequence[Any], bool]]
"""`Table.query`: some of a partition's items between two sort keys, and whether there are more."""


def _ignore_gap(_begin: int, _end: int) -> None:
    pass


class ChainWalk(Generic[LinkT]):
    """The batches of `spans` from `start` on, in order, and before them the one that `start` lies in. If no
    batch begins at `start`, the batch before it is yielded even if it ends there: it proves that the offset
    is in the stream.

    A query is made only when the batches found so far are used up, and a batch is decoded only
    when its turn comes: a reader that stops early pays for no more.

    `known(incarnation, begin)` are batches of a log that need no query. `until` bounds the walk: batches that
    begin there or later are left out. `max_queries` is the most for one span; then the walk ends,
    and `at_tail` says that it is not at the tail. `on_gap` gets the bounds of what is missing.
    The last span is packed up to `packed`, as far as is known: there the walk looks for a pack first.
    The reader may set `limit` at any batch: so many items are worth the next query.
    """

    def __init__(
        self,
        query: Query,
        decode: Callable[[Sequence[Any]], Iterable[LinkT]],
        spans: Sequence[Span],
        start: int,
        *,
        until: int | None = None,
        known: Callable[[str, int], Sequence[LinkT]] | None = None,
        looks_back: bool = True,
        max_queries: int | None = None,
        on_gap: Callable[[int, int], None] = _ignore_gap,
        packed: int = 0,
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
        self._packed = packed
        self.limit: int | None = None
        #: In the current span: the last batch, and the highest end offset so far.
        self._last: LinkT | None = None
        self._reached = start
        #: Items of the last query that were not yielded yet, less the known batches before it, and whether
        #: there are more in the table.
        self.items_left, self._has_more = 0, True
        #: The span of the batch that was yielded last.
        self.span = spans[0]

    @property
    def reached(self) -> int:
        """The end offset of the batches found so far."""
        return self._reached

    @property
    def at_tail(self) -> bool:
        """Whether nothing followed the batch that was yielded last."""
        return self.span.end is None and not self._has_more and self.items_left == 0

    def __iter__(self) -> Iterator[LinkT]:
        self._reached = self._start
        for span in self._spans:
            self.span = span
            begin = max(self._start, span.begin)
            stop = min((end for end in (span.end, self._until) if end is not None), default=None)
            # A batch may reach beyond the end of its span.
            self._reached = min(self._reached, begin)
            known = self._known(span.incarnation, begin) if self._known else ()
            page: Iterable[LinkT] = (link for link in known if stop is None or link.start < stop)
            self._last, self._has_more = None, True
            for queries in count():
                yield from self._in_order(page)
                if stop is not None and self._reached >= stop:
                    break
                if not self._has_more:
                    if stop is not None:
                        yield from self._bridge(stop=self._reached)
                    break
                if queries == self._max_queries:
                    return
                page = self._ask(begin, stop)
        if self._until is not None and self._reached < self._until:
            self._on_gap(self._reached, self._until)

    def _in_order(self, page: Iterable[LinkT]) -> Iterator[LinkT]:
        """The batches from the reached offset on. The first one of a span may begin before it; any other that
        does is in a pack, and is being removed."""
        reached = self._reached
        for link in page:
            if link.start > reached:
                yield from self._bridge(link.start)
                reached = self._reached
            self.items_left -= 1
            if link.start < reached and self._last is not None:
                continue
            self._last = link
            end = link.end
            if end > reached:
                self._reached = reached = end
            yield link

    def _bridge(self, stop: int) -> Iterator[LinkT]:
        """The pack that holds the reached offset, if no batch was found up to `stop`."""
        pack = self._look_back(self._reached)
        if pack is not None:
            self._last, self._reached = pack, pack.end
            yield pack
        if self._reached < stop:
            self._on_gap(self._reached, stop)

    def _ask(self, begin: int, stop: int | None) -> Iterable[LinkT]:
        """The batches of the span's next query, which begins behind the last batch."""
        pk, last = self.span.pk, self._last
        if last is None and self.span.end is None and begin < self._packed:
            items, _ = self._query(pk, at_most=render_offset(begin), limit=1, backward=True)
            found = list(self._decode(items))
            if found and found[0].end > begin:
                self.items_left, self._has_more = 1, True
                return found
        at_least = render_offset(begin)
        if last is not None:
            at_least = max(just_behind(last.start), render_offset(self._reached))
        at_most = _LAST_KEY if stop is None else render_offset(stop - 1)
        items, self._has_more = self._query(pk, at_least=at_least, at_most=at_most, limit=self.limit)
        self.items_left = len(items)
        batches = iter(self._decode(items))
        if last is not None or begin == self.span.begin or not self._looks_back:
            return batches
        first = list(islice(batches, 1))
        if first and first[0].start == begin:
            return chain(first, batches)
        # A batch that begins at `begin` may have come since: the one before it is asked for.
        items, _ = self._query(pk, at_most=render_offset(begin - 1), limit=1, backward=True)
        before = list(self._decode(items))
        if before and before[0].end < begin:
            # Unless `begin` lies beyond the end of the stream, a pack holds it, and this batch as well.
            pack = self._look_back(begin)
            before = before if pack is None else [pack]
        self.items_left += len(before)
        return chain(before, first, batches)

    def _look_back(self, position: int) -> LinkT | None:
        """The entry that begins before `position` and reaches beyond it: a pack."""
        at_most, seen = position - 1, 0
        while at_most >= 0 and seen < MOST_BEHIND:
            items, has_more = self._query(
                self.span.pk, at_most=render_offset(at_most), limit=MOST_BEHIND, backward=True
            )
            for link in self._decode(items):
                if link.end > position:
                    return link
                seen, at_most = seen + 1, link.start - 1
            if not has_more:
                return None
        return None


def cut_batch(batch: Batch, end: int | None) -> Batch:
    """The part of a batch that a fork inherits. The fork may begin in the middle of it; it never inherits the
    state of the source's writers, nor that the source was closed."""
    if end is None:
        return batch
    cut_end = min(batch.end, end)
    size = cut_end - batch.start
    if batch.gaps is not None:
        size = sum(batch.lengths[: batch.messages_before(cut_end)])
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

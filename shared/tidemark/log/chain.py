"""Walk the chain: find a stream's batches in order, and choose the next query.

A batch holds its end offset, and the next batch begins there (`docs/design.md`, §1). A read therefore queries
the sort keys from `start` on, and then the keys after the last batch found. Four cases need more:

- A start inside a batch: that batch has a lower key, and one backward query finds it.
- A fork: its chain goes through the inherited logs, each up to the point of the fork.
- A pack replaces the batches of [a, b) with one entry at `a` that ends at `b` (`docs/internals/packs.md`).
  The walk skips replaced batches that are not removed yet. If an expected batch is missing, one backward
  query finds the pack.
- A gap: if a batch begins after the end of the one before, and no pack covers the gap, data is missing.

This module makes no storage call and decodes no item. Callers pass in the query and the decoder. The server's
read decodes all that a writer must know (`log/read.py`); a bulk read decodes the few attributes of a row
(`spark/readers/dynamodb.py`).
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
#: More than the entries between a removed batch and the pack that replaced it: one call removes 25
#: (`janitor/replace.py`), and two runs may do so at the same time.
MOST_BEHIND: Final = 100


@dataclass(frozen=True, slots=True)
class Span:
    """A range of one log that belongs to the stream. `end` is None for the stream's own log, which still
    grows. A plain stream has one span; each level of forks adds one."""

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
"""`Table.query`: returns some of a partition's items between two sort keys, and whether there are more."""


class ChainWalk(Generic[LinkT]):
    """Yield the batches of `spans` in order, from the one that contains `start`. If no batch begins at
    `start`, the one before is yielded even if it ends there, as proof that the offset is in the stream.

    A query is made only when no found batch is left, and a batch is decoded only when it is yielded: a reader
    that stops early pays for no more.

    `known(incarnation, begin)` returns batches of a log that need no query. Batches that begin at `until` or
    later are left out. `max_queries` limits the queries for one span; after the last one the walk ends, and
    `at_tail` is False. `on_gap` receives the bounds of missing data. `packed` is the known end of packs in
    the last span: below it the walk looks for a pack first. The reader may set `limit`, the most items of the
    next query.
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
        on_gap: Callable[[int, int], None] = lambda _begin, _end: None,
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
        #: Items of the last query that are not yielded yet (less known batches), and whether the table has
        #: more.
        self.items_left, self._has_more = 0, True
        #: The span of the batch that was yielded last.
        self.span = spans[0]

    @property
    def reached(self) -> int:
        """The end offset of the batches found so far."""
        return self._reached

    @property
    def at_tail(self) -> bool:
        """Whether the batch that was yielded last is the end of the log."""
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
        """Yield the batches from the reached offset on. The first batch of a span may begin earlier; any
        other such batch is already in a pack and about to be removed."""
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
        """Yield the pack that holds the reached offset, if no batch was found up to `stop`."""
        pack = self._look_back(self._reached)
        if pack is not None:
            self._last, self._reached = pack, pack.end
            yield pack
        if self._reached < stop:
            self._on_gap(self._reached, stop)

    def _ask(self, begin: int, stop: int | None) -> Iterable[LinkT]:
        """Query the span for the batches after the last one."""
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
        # A batch at `begin` may have been written since, so the walk queries the one before.
        items, _ = self._query(pk, at_most=render_offset(begin - 1), limit=1, backward=True)
        before = list(self._decode(items))
        if before and before[0].end < begin:
            # A pack contains `begin` and this batch, unless `begin` is beyond the end of the stream.
            pack = self._look_back(begin)
            before = before if pack is None else [pack]
        self.items_left += len(before)
        return chain(before, first, batches)

    def _look_back(self, position: int) -> LinkT | None:
        """Return the pack that begins before `position` and ends after it, or None."""
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
    """Return the part of a batch that a fork inherits: up to `end`, which may be inside the batch. A fork
    never inherits the state of the source's writers, nor its closed state."""
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
    """Return the lengths of the messages in the first `size` bytes; the last one may be cut."""
    kept, left = [], size
    for length in lengths:
        if left <= 0:
            break
        kept.append(min(length, left))
        left -= length
    return tuple(kept)

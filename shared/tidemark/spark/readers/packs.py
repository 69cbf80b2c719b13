"""Packs, read as the items that they have replaced (`docs/packs.md`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from tidemark.log.schema import encode_lengths
from tidemark.protocol.offset import render_offset
from tidemark.protocol.pack import Block, BlockEntry, decode_block, decode_index
from tidemark.spark.readers.items import BatchItem, Binary, Number, Text

FetchRange = Callable[[str, int, int], bytes]

#: What one request reads: a task holds that much and what it inflates to.
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024


def unpacked(
    items: Iterable[BatchItem], begin: int, end: int, fetch: FetchRange
) -> Iterator[tuple[BatchItem, bytes | None]]:
    """The items of a walk, each with the bytes that it has; in place of a pack the batches that it has
    replaced. (The walk may come to a pack by one of those.)"""
    done = begin
    for item in items:
        if item.px is None:
            yield item, item.data
        else:
            for part, data in unpack(item, done, end, fetch):
                if part.end > done:
                    yield part, data
        done = max(done, item.end)


def unpack(pack: BatchItem, begin: int, end: int, fetch: FetchRange) -> Iterator[tuple[BatchItem, bytes]]:
    """The batches in the blocks that hold any of [begin, end), each with its bytes. Raises CorruptPack, and
    what `fetch` raises."""
    entries = [entry for entry in _entries(pack) if entry.end > begin and entry.start < end]
    while entries:
        first_byte, count = entries[0].first_byte, 1
        while count < len(entries) and entries[count].first_byte - first_byte < _BYTES_AT_ONCE:
            count += 1
        some, entries = entries[:count], entries[count:]
        for entry, block in _blocks(pack, some, fetch):
            yield from _batches(entry, block)


def block_item(pack: BatchItem, place: int, fetch: FetchRange) -> BatchItem:
    """The block of a pack that `place` lies in, as one item without its bytes: where it begins and ends, and
    where its messages end."""
    entries = _entries(pack)
    entry = next((entry for entry in entries if place < entry.end), entries[-1])
    [(_, block)] = _blocks(pack, [entry], fetch)
    return _item(entry.start, entry.end, block.times_ms[-1], block.lengths)


def _entries(pack: BatchItem) -> Sequence[BlockEntry]:
    assert pack.px is not None, "the caller has looked"
    return decode_index(pack.px.B).blocks


def _blocks(
    pack: BatchItem, entries: Sequence[BlockEntry], fetch: FetchRange
) -> Iterator[tuple[BlockEntry, Block]]:
    """With one request for all of them."""
    assert pack.s is not None, "a pack has an object"
    first_byte = entries[0].first_byte
    stored = fetch(pack.s.S, first_byte, entries[-1].first_byte + entries[-1].stored_bytes - first_byte)
    for entry in entries:
        place = entry.first_byte - first_byte
        yield entry, decode_block(entry, stored[place : place + entry.stored_bytes])


def _batches(entry: BlockEntry, block: Block) -> Iterator[tuple[BatchItem, bytes]]:
    lengths, start = iter(block.lengths), entry.start
    for count, time_ms in zip(block.batches, block.times_ms, strict=True):
        some = tuple(islice(lengths, count))
        end = start + sum(some)
        yield _item(start, end, time_ms, some), block.data[start - entry.start : end - entry.start]
        start = end


def _item(start: int, end: int, time_ms: int, lengths: Sequence[int]) -> BatchItem:
    ends = Binary(encode_lengths(lengths)) if len(lengths) > 1 else None
    return BatchItem(sk=Text(render_offset(start)), e=Number(str(end)), t=Number(str(time_ms)), m=ends)

"""The batch at an offset, without its bytes: where messages end, and when they were written."""

from __future__ import annotations

from tidemark.log.chain import MOST_BEHIND, cut_batch, spans_of
from tidemark.log.packs import Fill, block_batches
from tidemark.log.records import Batch, StreamRecord
from tidemark.log.schema import BOUNDARY_ATTRIBUTES, decode_batch
from tidemark.log.table import Table
from tidemark.protocol.offset import render_offset


def load_batch_at(
    table: Table, record: StreamRecord, offset: int, fill: Fill, *, or_before: bool = False
) -> Batch | None:
    """The batch that holds the offset, in whichever log of a lineage that lies; of a pack, the block that
    holds it. None if nothing is stored there. With `or_before` also one that ends there, and the last
    one for an offset beyond the end.

    Behind batches that are being removed, the pack that replaces them is found by the second query.
    """
    span = next(span for span in spans_of(record) if span.end is None or span.end > offset)
    found: Batch | None = None
    for limit in (1, MOST_BEHIND):
        items, _ = table.query(
            span.pk, at_most=render_offset(offset), attributes=BOUNDARY_ATTRIBUTES, limit=limit, backward=True
        )
        batches = [decode_batch(item) for item in items]
        reaching = (each for each in batches if each.end > offset or (or_before and each.end == offset))
        found = next(reaching, batches[0] if or_before and batches else None)
        if not batches or (found is not None and found.end >= offset):
            break
    return None if found is None else cut_batch(fill([next(block_batches(found, offset))])[0], span.end)

"""A stream of changes to a few rows, which is compacted when a test says so."""

from random import Random

import orjson

from tests.spark.streams import Streams
from tests.support import JSON
from tidemark.janitor.sweep import sweep
from tidemark.log.due import Packing
from tidemark.log.read import load_stream
from tidemark.log.records import StreamRecord
from tidemark.protocol.compaction import Compaction
from tidemark.protocol.offset import render_offset
from tidemark.service.read import read
from tidemark.service.snapshots import messages

SMALL = Packing(0, every_bytes=1, pack_bytes=400, min_batches=2, block_bytes=80)
AT_ONCE = Compaction(after_seconds=0, tombstone_seconds=0)


class Rows:
    """A stream of changes to a few rows."""

    def __init__(self, streams: Streams, seed: int = 0) -> None:
        self.streams, self.chance = streams, Random(seed)
        streams.process.stores.packing = SMALL
        streams.process.create(streams.key(), content_type=JSON, compaction=AT_ONCE)
        streams._types[""] = JSON
        self.ends: list[int] = []
        self.number = 0

    def change(self, appends: int) -> None:
        for _ in range(appends):
            changes = [self._change() for _ in range(self.chance.choice((1, 1, 3)))]
            self.streams.append(b"[%s]" % b",".join(changes))
            for change in changes:
                self.ends.append(len(change) + 1 + (self.ends[-1] if self.ends else 0))
            self.streams.world.clock.advance(1000)

    def _change(self) -> bytes:
        self.number += 1
        value = self.number * 10 ** self.chance.randrange(12)
        key = self.chance.choice("abcdefgh")
        return orjson.dumps({"type": "row", "key": key, "value": value, "headers": {"operation": "upsert"}})

    def compact(self) -> None:
        assert sweep(self.streams.process.stores).packed

    def record(self) -> StreamRecord:
        record = load_stream(self.streams.process.stores.table, self.streams.key())
        assert record is not None
        return record

    def read(self, offset: int = 0) -> list[tuple[int, bytes]]:
        """By the server: where each message ends, and its body."""
        stores, found, at_tail = self.streams.world.process().stores, list[tuple[int, bytes]](), False
        while not at_tail:
            reading = read(stores, self.streams.key(), offset)
            found += messages(reading)
            offset, at_tail = reading.page.end, reading.page.up_to_date
        return found

    def rows(self, offset: int = 0) -> list[tuple[str, str, bytes]]:
        """The same as rows of the table's reader."""
        places = [(end - len(body) - 1, end, body) for end, body in self.read(offset)]
        return [(render_offset(start), render_offset(end), body) for start, end, body in places]


def compacted_rows(streams: Streams) -> Rows:
    """A part is compacted, and a part is not."""
    found = Rows(streams)
    found.change(40)
    found.compact()
    found.change(5)
    assert 0 < found.record().compacted < found.ends[-1]
    return found

"""The reader of the table, without Spark around it: no message lost, none twice, gaps told."""

import dataclasses
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import orjson
import pyarrow as pa
import pytest

from tests.spark.streams import Streams, plan_here, read_here, rows_of, table_of, values_of
from tests.support import BYTES, JSON
from tidemark.blobs import BlobStore, joined_key
from tidemark.log.records import Batch, Checksums, Tombstone
from tidemark.log.schema import decode_entry, encode_batch, encode_lengths, encode_tombstone, log_pk
from tidemark.protocol.errors import Damaged
from tidemark.protocol.offset import render_offset
from tidemark.protocol.producer import ProducerState
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.append import INLINE_BYTES
from tidemark.service.buckets import create_bucket
from tidemark.service.load import load_head
from tidemark.service.snapshots import PublishRequest, publish_snapshot
from tidemark.spark.options import InvalidOptions
from tidemark.spark.options.read import COLUMNS
from tidemark.spark.readers import items as stored
from tidemark.spark.readers.columns import BATCH_BYTES, BATCH_ROWS, join_batches
from tidemark.spark.readers.port import DataLoss


def test_a_read_between_any_two_message_ends_is_exact_wherever_partitions_are_cut(streams: Streams) -> None:
    streams.fill(b'["a","bc","def"]', b"1", b"[2,3]", b'"four"', content_type=JSON)
    every = read_here(streams.by_table())
    assert [value for _, _, value in every] == [b'"a"', b'"bc"', b'"def"', b"1", b"2", b"3", b'"four"']
    assert [end for _, end, _ in every[:-1]] == [start for start, _, _ in every[1:]]
    for size in (1, 2, 3, 4, 5, 7, 11, 16):
        assert read_here(streams.by_table(), bytesPerPartition=str(size)) == every
    edges = [row[0] for row in every] + [every[-1][1]]
    for low in range(len(edges)):
        for high in range(low, len(edges)):
            starting, ending = (f'{{"{streams.name}": "{edges[each]}"}}' for each in (low, high))
            between = {"startingOffsets": starting, "endingOffsets": ending, "bytesPerPartition": "3"}
            assert read_here(streams.by_table(), **between) == every[low:high]


#: Where a read is to start and to end, and what is said of it; the messages end at 4 and at 9.
INVALID = [
    (2, None, ["startingOffsets: .*not the end of a message"]),
    (None, 2, ["endingOffsets: .*not the end of a message"]),
    ("7", 99, ["startingOffsets: .*'7' is no offset .*16 digits", "endingOffsets: .*beyond the tail"]),
    (9, 4, ["startingOffsets: .*: 0000000000000009 lies beyond .*0000000000000004"]),
]


@pytest.mark.parametrize(("starting", "ending", "faults"), INVALID)
def test_invalid_offsets_are_named_when_the_read_is_planned(
    streams: Streams, starting: Any, ending: Any, faults: list[str]
) -> None:
    streams.fill(b'["a","bc"]', content_type=JSON)
    given = {"startingOffsets": starting, "endingOffsets": ending}
    offsets = {
        option: f"{offset:016}" if isinstance(offset, int) else offset for option, offset in given.items()
    }
    places = {option: f'{{"{streams.name}": "{offset}"}}' for option, offset in offsets.items() if offset}
    with pytest.raises(InvalidOptions, match=".*; ".join(faults)) as refused:
        plan_here(streams.by_table(), **places)
    assert len(refused.value.faults) == len(faults)


def test_a_stream_without_a_given_offset_is_read_from_earliest_to_latest(streams: Streams) -> None:
    for suffix, bodies in (("-a", [b"one", b"two"]), ("-b", [b"three", b"four"])):
        streams.fill(*bodies, suffix=suffix)
    both = streams.by_table(subscribe=f"{streams.name}-a,{streams.name}-b")
    middle = f'{{"{streams.name}-a": "{render_offset(3)}"}}'
    assert values_of(*plan_here(both, endingOffsets=middle)) == [b"one", b"three", b"four"]
    assert values_of(*plan_here(both, startingOffsets=middle)) == [b"two", b"three", b"four"]


def test_an_offset_below_the_retained_one_is_data_loss_or_is_skipped(streams: Streams) -> None:
    """The table's 410: an offset below what is retained, and `earliest`, which is what is retained."""
    process, name = streams.process, streams.name
    create_bucket(process.stores, name)
    where = StreamKey(name, name)
    process.create(where)
    for body in (b"one", b"two", b"three"):
        process.append(where, body)
    publish_snapshot(process.stores, where, PublishRequest(6, BYTES, b"so far"))
    given = streams.by_table(bucket=name)
    assert values_of(*plan_here(given)) == [b"three"]
    below = {"startingOffsets": f'{{"{name}": "{render_offset(3)}"}}'}
    with pytest.raises(DataLoss, match=f"{render_offset(3)} lies below {render_offset(6)}"):
        plan_here(given, **below)
    assert values_of(*plan_here(given, failOnDataLoss="false", **below)) == [b"three"]


def test_missing_and_deleted_streams_are_all_named(streams: Streams) -> None:
    streams.fill(b"x")
    streams.fill(b"x", suffix="-b")
    streams.delete("-b")
    name = streams.name
    with pytest.raises(InvalidOptions, match=f"no such stream in v1: {name}-b, {name}-c"):
        plan_here(streams.by_table(subscribe=f"{name},{name}-b,{name}-c"))


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
@pytest.mark.parametrize("part_bytes", ["4", "1000"])
def test_a_missing_batch_is_data_loss_or_is_skipped(streams: Streams, lost: int, part_bytes: str) -> None:
    """As when DynamoDB's own expiry took it; each task sees it for its own part."""
    bodies = [b"abcd", b"ef", b"ghij", b"kl"]
    streams.fill(*bodies)
    reader, parts = plan_here(streams.by_table(bytesPerPartition=part_bytes))
    process, start = streams.process, render_offset(sum(map(len, bodies[:lost])))
    record = load_head(process.stores, streams.key()).record
    process.stores.table.delete({"pk": {"S": log_pk(record.key, record.incarnation)}, "sk": {"S": start}})
    with pytest.raises(DataLoss, match=f"{streams.name}: {start}"):
        rows_of(reader, parts)
    quiet = [dataclasses.replace(part, fail_on_data_loss=False) for part in parts]
    assert values_of(reader, quiet) == bodies[:lost] + bodies[lost + 1 :]


def test_a_planned_read_gets_its_messages_whatever_comes_later(streams: Streams) -> None:
    """More messages, and then a deletion."""
    streams.fill(b"abcd", b"ef")
    reader, parts = plan_here(streams.by_table())
    streams.append(b"later")
    assert values_of(reader, parts) == [b"abcd", b"ef"]
    streams.delete()
    streams.fill(b"another")
    assert values_of(reader, parts) == [b"abcd", b"ef"]


def test_producers_are_named_where_they_are_known(streams: Streams) -> None:
    streams.fill(b"plain")
    for body, claim in ((b"first", ("p", 3, 0)), (b"plain again", None), (b"second", ("p", 3, 1))):
        streams.append(body, claim=claim)
    columns = "producer_id,producer_epoch,producer_seq"
    found = [tuple(row.values()) for row in table_of(*plan_here(streams.by_table()), columns)]
    assert found == [(None, None, None), ("p", 3, 0), (None, None, None), ("p", 3, 1)]


def test_what_is_read_of_many_streams_together_is_what_each_of_them_has(streams: Streams) -> None:
    streams.fill(b'["a",{"key":"k"}]', suffix="-a", content_type=JSON)
    for suffix, bodies in (("-b", [b"of bytes"]), ("-c", [b"of two", b"batches"]), ("-d", [])):
        streams.fill(*bodies, suffix=suffix)
    streams.append(b"of a producer", suffix="-d", claim=("p", 3, 0))
    streams.process.fork(streams.key("-e"), streams.key("-b"), 8)
    reader, parts = plan_here(streams.by_table(subscribePattern=f"{streams.name}-.*"))
    assert [part.is_small_batch for part in parts] == [True, True, False, True, False]
    together = [row for batch in reader.read_all(parts, list(COLUMNS)) for row in batch.to_pylist()]
    assert sorted(map(str, together)) == sorted(map(str, table_of(reader, parts, ",".join(COLUMNS))))


def test_arrow_batches_are_bounded_in_rows_and_bytes(streams: Streams) -> None:
    """Whatever the stream's size, a task holds a page and a batch."""
    small = b"[" + b",".join([b"1"] * 3 * BATCH_ROWS) + b"]"
    large = bytes(INLINE_BYTES + 1)
    streams.fill(*[small] * 40, content_type=JSON)
    streams.fill(*[large] * 100, suffix="-l")
    for suffix, rows in (("", 120 * BATCH_ROWS), ("-l", 100)):
        reader, (part,) = plan_here(streams.by_table(subscribe=streams.name + suffix))
        batches = list(reader.read(part))
        assert sum(batch.num_rows for batch in batches) == rows
        # A run of items is taken whole: of tiny messages it may hold more than a batch's rows.
        assert max(batch.num_rows for batch in batches) <= (stored.RUN_BYTES + len(small)) // 2
        values = [batch.column("value").nbytes for batch in batches]
        assert max(values) <= BATCH_BYTES + stored.RUN_BYTES + 8 * BATCH_ROWS


@pytest.mark.parametrize("seed", range(20))
def test_small_batches_are_joined_and_large_ones_handed_on(seed: int) -> None:
    chance = Random(seed)
    batches, number = [], 0
    for _ in range(chance.randrange(30)):
        rows = chance.choice((1, 10, BATCH_ROWS // 4 - 1, BATCH_ROWS // 4, BATCH_ROWS))
        batches.append(pa.record_batch({"n": range(number, number + rows)}))
        number += rows
    joined = list(join_batches(batches))
    assert [n for batch in joined for n in batch.column("n").to_pylist()] == list(range(number))
    assert all(batch.num_rows < BATCH_ROWS * 5 // 4 for batch in joined)
    assert all(first.num_rows + second.num_rows >= BATCH_ROWS // 4 for first, second in pairwise(joined))


def decoded(entry: Batch | Tombstone) -> stored.BatchItem:
    encode: Any = encode_batch if isinstance(entry, Batch) else encode_tombstone
    return msgspec.json.decode(orjson.dumps(encode("log/v1/a#i", entry)), type=stored.BatchItem, strict=False)


def test_the_bulk_decoder_and_the_schema_decode_the_same_batches() -> None:
    """The bulk decoder and the full one agree on every kind of item."""
    recent = (ProducerState("old", 1, 4, 90), ProducerState("new", 2, 0, 107))
    batches = [
        Batch(100, Tail(107, producers=recent), "id", 1, b"abcdefg", lengths=(3, 4)),
        Batch(100, Tail(107), "id", 1, b"abcdefg", lengths=(7,)),
        Batch(100, Tail(2100), "id", 1, b"deflated " * 222 + b"..", lengths=(2000,)),
        Batch(100, Tail(100, closed=True), "id", 1),
        Batch(100, Tail(400_000), "id", 1, None, "blob", lengths=(399_900,)),
    ]
    for batch in batches:
        known, item = decode_entry(encode_batch("log/v1/a#i", batch)), decoded(batch)
        assert isinstance(known, Batch)
        assert (item.start, item.end, item.time.N) == (known.start, known.end, known.time_ms)
        assert (item.data or None) == (known.data or None)
        assert (item.blob.S if item.blob else None) == known.blob
        places = [known.start, *stored.message_ends(item)]
        assert [end - start for start, end in pairwise(places)] == list(known.lengths)
    tombstone = decoded(Tombstone(100, Tail(100, closed=True), "id", 1, behind_closing=True))
    assert (tombstone.start, tombstone.end, tombstone.data or None) == (100, 100, None)
    named = {end: each[0] for end, each in stored.producers_by_end(decoded(batches[0])).items()}
    assert named == {107: "new"}
    many = tuple(ProducerState(f"writer-{number}", 0, 0, number) for number in range(108))
    crowded = decoded(Batch(100, Tail(107, producers=many), "id", 1, b"abcdefg", lengths=(7,)))
    assert crowded.producers is not None
    assert crowded.producers.B, "of many producers the item has them deflated"
    assert sorted(stored.producers_by_end(crowded)) == [101, 102, 103, 104, 105, 106, 107]
    assert encode_lengths([1]) == b"\x01"


@pytest.mark.parametrize("many", [1, 9])
@pytest.mark.parametrize("body", [b"1234567", b"deflated " * 222])
def test_bytes_that_do_not_fit_their_checksum_are_damaged(body: bytes, many: int) -> None:
    """Also where many batches are taken together."""
    size = len(body)
    starts = range(0, many * size, size)
    batches = [
        Batch(at, Tail(at + size), "id", 1, body, lengths=(size,), checksums=Checksums.of(None, at, body))
        for at in starts
    ]
    items = [decoded(batch) for batch in batches]
    (run,) = stored.merge_page(items, 0, many * size)
    assert (run.start, run.end) == (0, many * size)
    items[-1] = decoded(dataclasses.replace(batches[-1], data=bytes(reversed(body))))
    with pytest.raises(Damaged):
        list(stored.merge_page(items, 0, many * size))


def test_a_fork_is_read_through_its_lineage(streams: Streams) -> None:
    """From the first source, from the middle of a message of the second, and its own; and one that has
    nothing of its own."""
    streams.fill(b"ab", b"cd", b"never", suffix="-first")
    process, second = streams.process, streams.key("-second")
    process.fork(second, streams.key("-first"), 4)
    process.append(second, b"efxxx")
    process.fork(streams.key(), second, 4, sub=2)
    process.append(streams.key(), b"gh")
    process.fork(streams.key("-bare"), streams.key("-first"), 2)
    streams.delete("-second")
    ends = [(render_offset(end - 2), render_offset(end)) for end in (2, 4, 6, 8)]
    expected = [(*places, value) for places, value in zip(ends, (b"ab", b"cd", b"ef", b"gh"), strict=True)]
    for size in ("1", "3", "1000"):
        assert read_here(streams.by_table(), bytesPerPartition=size) == expected
    assert read_here(streams.by_table(subscribe=f"{streams.name}-bare")) == expected[:1]


def test_a_limited_batch_of_a_fork_ends_where_it_leaves_a_batch_of_its_source(streams: Streams) -> None:
    """Where that batch ends, a message of the fork's own may be half over: nobody may trim it there."""
    process, source = streams.process, streams.key("-source")
    streams.fill(b"ab", b"cdefgh", suffix="-source")
    process.fork(streams.key(), source, 2, sub=2)
    process.append(streams.key(), b"own message")
    reader, _ = plan_here(streams.by_table())
    tail = reader.heads([streams.name])[streams.name].tail
    assert reader.limit(streams.name, tail.at(render_offset(2)), tail, 1) == tail.at(render_offset(4))


def test_a_limited_batch_that_takes_all_of_a_closed_stream_says_that_it_is_closed(streams: Streams) -> None:
    """Else a query would take its deletion for lost data."""
    streams.fill(b"larger than the limit")
    streams.append(b"", close=True)
    reader, _ = plan_here(streams.by_table())
    tail = reader.heads([streams.name])[streams.name].tail
    assert tail.closed
    assert reader.limit(streams.name, tail.at(reader.beginning), tail, 1) == tail


def test_a_batch_of_several_objects_is_read_in_order() -> None:
    """As a crowd with large appends writes it."""
    blob = joined_key([("log/i/one", 3), ("log/i/two", 5)])
    item = decoded(Batch(100, Tail(108), "id", 1, None, blob, lengths=(3, 5)))
    blobs = BlobStore.__new__(BlobStore)
    there = {("log/i/one", 3): b"abc", ("log/i/two", 5): b"defgh"}
    blobs.get = lambda *part: there[part]  # type: ignore[method-assign]
    assert stored.body_of(item, blobs) == b"abcdefgh"

"""Pages: no gap, no repetition, cut at batch ends. `janitor/test_pack.py` reads from inside of messages."""

import pytest

from tests.support import JSON, World, a_key, before, filled
from tidemark.blobs import joined_key
from tidemark.log.append import put_batch
from tidemark.log.read import load_last
from tidemark.log.records import Batch, Checksums
from tidemark.log.schema import Item, log_pk
from tidemark.protocol.caching import render_etag
from tidemark.protocol.errors import Damaged, HistoryGone, StreamNotFound
from tidemark.protocol.tail import Tail
from tidemark.service.append import INLINE_BYTES
from tidemark.service.catalog import load_times
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read, read_on, read_record

pytestmark = pytest.mark.each_engine


def test_a_page_of_another_history_has_another_entity_tag(world: World) -> None:
    """The stream is put back to an older state, and then written on with other bytes of the same length."""
    process, key = filled(world, b"abcd", b"ef")
    earlier = read(world.process().stores, key, 0)
    last = process.stores.table.query(log_pk(key, earlier.record.incarnation))[0][-1]
    process.stores.table.delete_many([{name: last[name] for name in ("pk", "sk")}])
    assert read(world.process().stores, key, 4).page.up_to_date
    with pytest.raises(HistoryGone):
        read(world.process().stores, key, 6)
    world.process().append(key, b"gh")
    later = read(world.process().stores, key, 0)
    tags = {
        render_etag("i", page.start, page.end, closed=False, crc=page.crc)
        for page in (earlier.page, later.page, read(world.process().stores, key, 0).page)
    }
    assert len(tags) == 2
    assert (later.page.start, later.page.end) == (earlier.page.start, earlier.page.end)


@pytest.mark.parametrize("size", [INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 1_000_000])
def test_a_body_is_read_back_however_it_is_stored(world: World, size: int) -> None:
    body = bytes(index * 7 % 256 for index in range(size))
    process, key = filled(world, b"<", body, b">")
    assert process.read_all(key) == b"<" + body + b">"
    assert read(world.process().stores, key, 1 + size // 2).data == body[size // 2 :] + b">"


@pytest.mark.parametrize(("bodies", "items"), [(5, [5]), (8, [8, 3]), (9, [9, 4]), (10, [10, 4, 1])])
def test_large_bodies_are_asked_for_once_and_a_query_that_is_full_is_not_the_tail(
    world: World, monkeypatch: pytest.MonkeyPatch, bodies: int, items: list[int]
) -> None:
    """Those that are remembered are whole, though the page's times were read first, without its state."""
    monkeypatch.setattr("tidemark.log.read._BODIES_AHEAD", 4)
    body = bytes(INLINE_BYTES + 1)
    process, key = filled(world, *[body] * (bodies - 1))
    process.append(key, body, close=True)
    reader, record = world.process(), load_head(process.stores, key).record
    load_times(reader.stores, key, 0)
    found, query, start = dict[int, tuple[list[Item], bool]](), reader.stores.table.query, 0
    monkeypatch.setattr(
        reader.stores.table, "query", lambda *at, **asked: found.setdefault(len(found), query(*at, **asked))
    )
    reader.calls.taken()
    for limit, batches, is_last in ((0, 1, False), (3, 3, False), (100, bodies - 4, True)):
        page = read_record(reader.stores, record, start, limit * len(body)).page
        assert (len(page.batches), page.up_to_date, page.closed) == (batches, is_last, is_last)
        start = page.end
    assert [len(answer) for answer, _ in found.values() if answer] == items
    assert reader.calls.taken() == {"Query": len(found), "GetObject": bodies}


def test_a_waiting_reader_gets_an_append_a_close_and_a_deletion(world: World) -> None:
    process, key = filled(world, b"abc")
    at_tail = read(process.stores, key, "now")
    assert not read_on(process.stores, at_tail).page.has_data
    process.append(key, b"de")
    later = read_on(process.stores, at_tail)
    assert later.data == b"de"
    process.append(key, close=True)
    assert read_on(process.stores, later).page.closed
    delete(process.stores, key)
    with pytest.raises(StreamNotFound):
        read_on(process.stores, later)


def test_an_append_between_two_queries_does_not_confuse_a_reader_at_the_tail(world: World) -> None:
    """The first query finds nothing after the tail. Before the second one, which reads the batch before the
    tail, an append lands exactly there."""
    writer, key = filled(world, b'"first"', content_type=JSON)
    tail = writer.append(key, b'"second"', content_type=JSON).next_offset
    reader = world.process()
    queries = []

    def append_between(operation: str) -> None:
        if operation == "Query":
            queries.append(operation)
        if len(queries) == 2:
            queries.append("appended")
            writer.append(key, b'"third"', content_type=JSON)

    before(reader.dynamodb, append_between)
    reading = read(reader.stores, key, tail)
    assert "appended" in queries
    assert (reading.page.end, reading.data) == (tail, b"")
    assert read_on(reader.stores, reading).data == b'"third",'


def test_a_read_of_the_tail_does_not_read_the_bytes_of_the_last_batch(world: World) -> None:
    process, key = filled(world, b"a", b"bcd")
    record = process.create(key).head.record
    last = load_last(process.stores.table, log_pk(key, record.incarnation))
    assert isinstance(last, Batch)
    assert (last.start, last.end, last.data) == (1, 4, None)


def test_a_batch_of_several_objects_is_read_forked_and_removed_as_any_other(world: World) -> None:
    """As a crowd with large appends writes it (`service/combine.py`)."""
    process, key = filled(world, b"first.")
    head = load_head(process.stores, key)
    bodies = [process.stores.put_body(head.record.incarnation, body) for body in (b"abc", b"defgh")]
    blob = joined_key([(bodies[0].blob, 3), (bodies[1].blob, 5)])
    checksums = Checksums.of(head.crc, 6, b"abcdefgh")
    put_batch(
        process.stores.table,
        head.record,
        Batch(6, Tail(14), "id", process.stores.clock_ms(), None, blob, (3, 5), checksums=checksums),
    )
    reader, forked = world.process(), a_key()
    assert reader.read_all(key) == b"first.abcdefgh"
    assert reader.read_all(key, 8) == b"cdefgh"
    reader.fork(forked, key, 10)
    assert world.process().read_all(forked) == b"first.abcd"
    process.stores.blobs.put(bodies[1].blob, b"DEFGH")
    with pytest.raises(Damaged):
        world.process().read_all(key)
    process.stores.blobs.delete(blob)
    assert [process.stores.blobs.stored(body.blob) for body in bodies] == [None, None]

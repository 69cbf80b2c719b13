"""The reader of the table over packs, and over many batches at once: the rows are those of single batches."""

from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from tests.spark.streams import Streams, plan_here, read_here, table_of
from tests.support import BYTES, JSON
from tidemark.janitor.sweep import sweep
from tidemark.log.due import Packing
from tidemark.log.schema import encode_lengths, log_pk
from tidemark.protocol.errors import Damaged
from tidemark.service.append import INLINE_BYTES
from tidemark.service.load import load_head
from tidemark.spark.options import InvalidOptions
from tidemark.spark.options.read import COLUMNS
from tidemark.spark.readers import dynamodb
from tidemark.spark.readers import items as stored

SMALL = Packing(0, every_bytes=1, pack_bytes=250, min_batches=2, block_bytes=80)


def fill(streams: Streams, *, messages: Any = 2, content_type: Any = JSON) -> list[dict[str, Any]]:
    """Thirty appends, a second between them. Returns the rows that they are."""
    streams.process.stores.packing = SMALL
    streams.fill(content_type=content_type)
    rows: list[dict[str, Any]] = []
    place = 0
    for number in range(30):
        values = [b'{"key":%d}' % (number % 2 + 10**each) for each in range(messages(number))]
        body = b"[%s]" % b",".join(values) if content_type is JSON else b"".join(values)
        streams.append(body)
        for value in values if content_type is JSON else [body]:
            end = place + len(value) + (content_type is JSON)
            told = {"offset": f"{place:016}", "end_offset": f"{end:016}", "value": value}
            rows.append(told | {"timestamp": datetime.fromtimestamp(streams.world.clock.now_ms / 1000, UTC)})
            place = end
        streams.world.clock.advance(1000)
    return rows


def fill_by_two(streams: Streams) -> list[dict[str, Any]]:
    return fill(streams, messages=lambda _: 2)


def pack(streams: Streams) -> None:
    assert sweep(streams.process.stores).packed


def all_rows(streams: Streams, **options: str) -> list[dict[str, Any]]:
    given = {"columns": ",".join(COLUMNS)} | options
    return table_of(*plan_here(streams.by_table(**given)), given["columns"])


@pytest.mark.parametrize(
    ("content_type", "messages"),
    [(JSON, lambda _: 1), (JSON, lambda _: 2), (JSON, lambda number: number % 3 + 1), (BYTES, lambda _: 2)],
    ids=["one message", "two", "one to three", "bytes"],
)
def test_rows_of_packs_are_those_of_the_batches(streams: Streams, content_type: Any, messages: Any) -> None:
    """In every partition and in any columns; and of what follows a pack."""
    expected = fill(streams, messages=messages, content_type=content_type)
    before = all_rows(streams)
    assert [{name: row[name] for name in expected[0]} for row in before] == expected
    pack(streams)
    assert all_rows(streams) == before
    for size in (7, 33, 400):
        assert all_rows(streams, bytesPerPartition=str(size)) == before
    for columns in ("offset", "end_offset,timestamp", "value,producer_id", "type,key", "bucket"):
        chosen = [{name: row[name] for name in columns.split(",")} for row in before]
        assert all_rows(streams, columns=columns) == chosen
    streams.append(b"7")
    streams.append(b"8")
    assert all_rows(streams)[:-2] == before


def test_offsets_inside_packs_are_checked(streams: Streams) -> None:
    fill_by_two(streams)
    before = read_here(streams.by_table())
    pack(streams)
    for number, (offset, _, _) in enumerate(before):
        starting = f'{{"{streams.name}": "{offset}"}}'
        assert read_here(streams.by_table(), startingOffsets=starting) == before[number:]
    between = f'{{"{streams.name}": "{int(before[7][0]) + 1:016d}"}}'
    with pytest.raises(InvalidOptions, match="not the end of a message"):
        plan_here(streams.by_table(), startingOffsets=between)


def test_offsets_are_checked_while_replaced_batches_are_being_removed(streams: Streams) -> None:
    """Of five batches that a pack has replaced, one is still there."""
    fill_by_two(streams)
    table, record = streams.process.stores.table, load_head(streams.process.stores, streams.key()).record
    items, _ = table.query(log_pk(record.key, record.incarnation))
    before = read_here(streams.by_table())
    pack(streams)
    kept = {item["sk"]["S"] for item in table.query(log_pk(record.key, record.incarnation))[0]}
    for item in [each for each in items if each["sk"]["S"] not in kept][::5]:
        table.put(item)
    for number, (offset, _, _) in enumerate(before):
        place = f'{{"{streams.name}": "{offset}"}}'
        assert read_here(streams.by_table(), startingOffsets=place) == before[number:]
        assert read_here(streams.by_table(), endingOffsets=place) == before[:number]


def test_a_limit_inside_a_pack_ends_where_a_block_ends(streams: Streams) -> None:
    ends = [int(row["end_offset"]) for row in fill_by_two(streams)]
    pack(streams)
    reader, _ = plan_here(streams.by_table())
    head = reader.heads([streams.name])[streams.name]
    place = int(reader.limit(streams.name, head.earliest, head.tail, 150).offset)
    assert 40 <= place <= 150
    assert place in ends


def single(start: int, end: int, **more: Any) -> stored.BatchItem:
    data = {"plain": stored.Binary(b"x" * (end - start))}
    return stored.BatchItem(stored.Text(f"{start:016}"), stored.Number(end), stored.Number(5), **data | more)


PLAIN = [single(start, start + 4) for start in range(0, 24, 4)]
TWO = stored.Binary(b"\x01\x03")
TWO_EACH = [single(start, start + 4, message_lengths=TWO) for start in range(24, 48, 4)]
CLOSED = single(24, 24, plain=None)
BLOB = single(24, 30, plain=None, blob=stored.Text("x"))
BEHIND_A_GAP = [single(22, 30), single(30, 31)]
OVERLAPPING = [single(18, 30), single(30, 31)]
TOO_FEW_BYTES = single(20, 24, plain=stored.Binary(b"x"))
WRONG_LENGTHS = [single(n, n + 4, message_lengths=stored.Binary(b"\x05")) for n in range(0, 16, 4)]
#: The page, from where and to where it is read, and what it becomes: a run is given by its two ends.
PAGES: dict[str, tuple[list[stored.BatchItem], int, int, list[Any]]] = {
    "empty": ([], 0, 99, []),
    "whole": (PLAIN, 0, 99, [(0, 24)]),
    "begins inside the first": (PLAIN, 2, 99, [PLAIN[0], (4, 24)]),
    "begins behind the first": (PLAIN, 4, 99, [PLAIN[0], (4, 24)]),
    "begins inside the second": (PLAIN, 5, 99, PLAIN),
    "gap before": (PLAIN[1:], 2, 99, PLAIN[1:]),
    "gap": ([*PLAIN[:5], *BEHIND_A_GAP], 0, 99, [(0, 20), *BEHIND_A_GAP]),
    "overlap": ([*PLAIN[:5], *OVERLAPPING], 0, 99, [(0, 20), *OVERLAPPING]),
    "ends between two": (PLAIN, 0, 20, [(0, 20), PLAIN[5]]),
    "ends inside one": (PLAIN, 0, 17, [(0, 20), PLAIN[5]]),
    "several messages": (PLAIN + TWO_EACH, 0, 99, [(0, 48)]),
    "one": (PLAIN[:1], 0, 99, [(0, 4)]),
    "mark of closing": ([*PLAIN, CLOSED], 0, 99, [(0, 24), CLOSED]),
    "blob": ([*PLAIN, BLOB], 0, 99, [(0, 24), BLOB]),
}


@pytest.mark.parametrize("case", PAGES)
def test_items_are_a_run_only_where_they_may_be(case: str) -> None:
    page, reached, high, merged = PAGES[case]
    found = stored.merge_page(page, reached, high)
    assert [
        (each.start, each.end) if isinstance(each, stored.MessageRun) else each for each in found
    ] == merged


@pytest.mark.parametrize("page", [[*PLAIN[:5], TOO_FEW_BYTES], WRONG_LENGTHS, WRONG_LENGTHS[:1]])
def test_an_item_that_is_not_as_it_says_is_damaged(page: list[stored.BatchItem]) -> None:
    with pytest.raises(Damaged):
        list(stored.merge_page(page, 0, 99))


@pytest.mark.parametrize("end", [1, 3, 4, 5, 8, 23, 24, 25, 26, 28, 47])
def test_a_run_is_cut_where_a_fork_leaves_its_log(end: int) -> None:
    """Also in the middle of a message."""
    (run,) = stored.merge_page(PLAIN + TWO_EACH, 0, 99)
    assert isinstance(run, stored.MessageRun)
    cut = run.until(end)
    assert (cut.start, cut.end, b"".join(cut.data)) == (0, end, b"x" * end)
    assert cut.ends.tolist() == [each for each in run.ends if each < end] + [end]
    assert len(cut.message_times_ms) == len(cut.lengths)


def test_a_run_has_a_bounded_number_of_bytes() -> None:
    size = stored.RUN_BYTES // 8
    page = [single(start, start + size) for start in range(0, 64 * size, size)]
    sizes = [each.end - each.start for each in stored.merge_page(page, 0, 64 * size)]
    assert sizes == [stored.RUN_BYTES] * 8


@pytest.mark.parametrize("seed", range(6))
def test_runs_have_the_rows_of_items(streams: Streams, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items with one message and with several, deflated, in S3 and with producers, cut into partitions."""
    chance = Random(seed)
    content_type, first, has_blobs = (JSON, BYTES)[seed % 2], 0 if seed >= 4 else 30, seed in (0, 3)
    streams.fill(content_type=content_type)
    for number in range(40):
        body = b'"%s"' % (b"x" * chance.choice((1, 5, 1000)))
        if has_blobs and number % 13 == 7:
            body = b'"%s"' % chance.randbytes(INLINE_BYTES).hex().encode()
        if number // 10 % 2:
            body = b"[%s]" % b",".join([body] * chance.randrange(1, 4))
        streams.append(body, claim=("writer", 0, number - first) if number >= first else None)
        streams.world.clock.advance(1000)
    sizes = (10**9, 500_000) if has_blobs else (10**9, 5000, 300)
    runs = [all_rows(streams, bytesPerPartition=str(size)) for size in sizes]
    monkeypatch.setattr(dynamodb, "merge_page", lambda items, _reached, _high: items)
    one_by_one = all_rows(streams)
    assert all(rows == one_by_one for rows in runs)
    assert "writer" in {row["producer_id"] for row in one_by_one}


def test_columns_of_lengths_decoded_together_are_those_decoded_one_by_one() -> None:
    edges = (0, 1, 127, 128, 16383, 16384, 2**21, 2**40)
    for seed in range(20):
        chance = Random(seed)
        columns = [
            [max(0, chance.choice(edges) - chance.randrange(3)) for _ in range(chance.randrange(1, 30))]
            for _ in range(chance.randrange(1, 30))
        ]
        lengths, counts = stored.decode_all_lengths([encode_lengths(column) for column in columns])
        assert lengths.tolist() == [length for column in columns for length in column]
        assert counts.tolist() == [len(column) for column in columns]


@pytest.mark.parametrize("packed", [False, True])
def test_a_read_between_two_times_has_what_was_written_then(streams: Streams, *, packed: bool) -> None:
    """Each append has its own second, two messages and, in packs, a block that it shares with others."""
    began = streams.world.clock.now_ms
    fill_by_two(streams)
    before = read_here(streams.by_table())
    if packed:
        pack(streams)
    for first, last in ((-5, 99), (0, 30), (1, 2), (7, 7), (13, 29), (29, 30), (30, 40)):
        times = {"startingTimestamp": began + 1000 * first, "endingTimestamp": began + 1000 * last}
        found = read_here(streams.by_table(), **{name: str(ms) for name, ms in times.items()})
        assert found == before[2 * max(first, 0) : 2 * last], (first, last)

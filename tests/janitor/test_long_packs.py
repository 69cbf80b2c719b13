"""A long stream: packed, read, trimmed, forked and deleted with calls that are counted, and in memory that
does not grow with it. `python -m benchmarks.packs` does the same with ten million messages."""

import random
from pathlib import Path
from typing import Any, Final

import pytest

from tests.janitor.long_stream import HOUR_MS, KEY, MESSAGE_BYTES, LongStream, Peak, data_between
from tests.processes import alone
from tests.support import BYTES, append_request, create_request
from tidemark.janitor.sweep import sweep
from tidemark.log.due import KEEP_REPLACED_MS, Packing
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import append
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.read import read
from tidemark.service.snapshots import PublishRequest, publish_snapshot
from tidemark.service.stores import MEGABYTE

pytestmark = pytest.mark.slow

FORK: Final = StreamKey("v1", "fork")
MESSAGES: Final = 200_000
#: Of a page of 1 MB, by which the engine counts an item's JSON, and of a pack of 8 MB.
PAGE_MESSAGES: Final = 4_000
PACK_MESSAGES: Final = Packing(HOUR_MS).pack_bytes // MESSAGE_BYTES + 1


HAS_PEAK: Final = Path("/proc/self/clear_refs").exists()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> LongStream:
    """Two full packs and a rest. Of what is removed the table keeps nothing, and objects are files."""
    folder = tmp_path_factory.mktemp("packed")
    return LongStream(MESSAGES, folder, **alone(_pack, folder))


def _pack(folder: Path) -> dict[str, Any]:
    stream = LongStream(MESSAGES, folder)
    peak = Peak() if HAS_PEAK else None
    assert sweep(stream.process()).packed == -(-MESSAGES // PACK_MESSAGES)
    grown_bytes = peak.grown_bytes if peak else 0
    return {"calls": stream.calls, "now_ms": stream.now_ms, "marks": stream.marks, "grown_bytes": grown_bytes}


@pytest.mark.skipif(not HAS_PEAK, reason="Linux alone tells the peak of memory")
def test_packing_takes_less_than_64_mb_whatever_the_stream(packed: LongStream) -> None:
    assert 0 < packed.grown_bytes < 64 * MEGABYTE


def test_packing_takes_a_query_for_a_thousand_kilobytes_and_a_call_for_25_batches(packed: LongStream) -> None:
    packs = -(-MESSAGES // PACK_MESSAGES)
    assert packed.batches_left == 0
    assert packed.calls["PutObject"] == packed.calls["TransactWriteItems"] == packs
    assert packed.calls["BatchWriteItem"] <= MESSAGES / 25 + packs * (PACK_MESSAGES / 1000 + 1)
    # Once to read them, and a thousand keys at a time to remove them.
    assert packed.calls["Query"] <= MESSAGES / PAGE_MESSAGES + MESSAGES / 1000 + 10 * packs
    assert packed.calls["GetItem"] <= packs + 2
    assert packed.calls["GetRange"] == 0


def test_all_of_it_is_read_with_two_ranges_a_page(packed: LongStream) -> None:
    stores, start, pages = packed.process(), 0, 0
    packed.calls.clear()
    while True:
        reading = read(stores, KEY, start)
        end = min(reading.page.end, packed.end)
        assert reading.data[: end - start] == data_between(start, end)
        start, pages = reading.page.end, pages + 1
        if reading.page.up_to_date:
            break
    assert pages <= packed.end / (4 * MEGABYTE - 131072) + 2
    assert packed.calls["GetRange"] <= 2 * pages
    assert packed.calls["Query"] <= 2 * pages


def test_a_read_anywhere_takes_one_query_and_one_range(packed: LongStream) -> None:
    """One more where the next megabyte, which is read ahead, reaches into the next pack."""
    chance = random.Random(3)
    packed.calls.clear()
    for _ in range(300):
        start = chance.randrange(0, MESSAGES - 2000) * MESSAGE_BYTES
        reading = read(packed.process(), KEY, start, small=True)
        assert reading.data == data_between(start, reading.page.end)
    assert packed.calls["GetItem"] == 300
    assert 300 <= packed.calls["Query"] <= 400
    assert 300 <= packed.calls["GetRange"] <= 400


def test_a_fork_inside_a_pack_is_trimmed_and_deleted_with_calls_for_packs_alone(packed: LongStream) -> None:
    """None of them depends on how many messages there are. The last test: nothing is left."""
    stream, packs = packed, len(packed.objects)
    stream.calls.clear()
    inside = MESSAGES // 2 * MESSAGE_BYTES
    stores = stream.process()
    create(stores, FORK, create_request(None, fork=ForkPoint(KEY, inside, 0)))
    append(stores, FORK, [append_request(b"[2]", content_type=stream.record.content_type)])
    assert read(stores, FORK, inside - 200).data == data_between(inside - 200, inside) + b"2,"
    assert stream.calls.total() <= 20

    stream.calls.clear()
    delete(stores, FORK)
    stream.now_ms += 2 * HOUR_MS
    sweep(stream.process())
    publish_snapshot(stream.process(), KEY, PublishRequest(inside, BYTES, b"folded"))
    stream.now_ms += 2 * HOUR_MS
    sweep(stream.process())
    # Of the packs below it nothing is left, and the snapshot is an object.
    assert len(stream.objects) == packs - inside // (PACK_MESSAGES * MESSAGE_BYTES) + 1
    data = read(stream.process(), KEY, inside, small=True).data
    assert data.startswith(data_between(inside, inside + 5000))
    assert stream.calls.total() <= 150 + 4 * packs

    stream.calls.clear()
    delete(stream.process(), KEY)
    for wait_ms in (2 * HOUR_MS, KEEP_REPLACED_MS):
        stream.now_ms += wait_ms
        sweep(stream.process())
    assert len(stream.objects) == 0
    assert stream.batches_left == 0
    assert stream.calls.total() <= 150

"""The format of a pack: what is put in comes out, block by block, and what is damaged is refused; and when
batches are packed."""

import random
import struct
import subprocess
import sys
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.log import pack_format


@pytest.fixture(scope="module", params=["isal", "zlib"])
def inflated_by(request: pytest.FixtureRequest) -> Iterator[str]:
    """By each library: where there is no wheel of the first, the second takes its place."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "zlib":
            patch.setitem(sys.modules, "isal", None)
        pack_format.fast_zlib.cache_clear()
        yield request.param
    pack_format.fast_zlib.cache_clear()


def test_a_block_is_inflated_by_isal_or_by_zlib_where_that_is_missing(inflated_by: str) -> None:
    assert pack_format.fast_zlib().__name__ == {"isal": "isal.isal_zlib", "zlib": "zlib"}[inflated_by]
    assert pack_format.fast_zlib().crc32(b"tide", 7) == zlib.crc32(b"tide", 7)


def test_the_library_is_not_imported_before_a_block_is_read() -> None:
    code = "import sys, tidemark.log.read, tidemark.janitor.pack; sys.exit('isal' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@dataclass(frozen=True)
class Written:
    """A batch as it is given to the writer."""

    data: bytes
    lengths: tuple[int, ...]
    appends: tuple[int, ...]
    time_ms: int


@st.composite
def batches(draw: st.DrawFn) -> Written:
    appends = draw(
        st.lists(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4), min_size=1, max_size=3)
    )
    messages = [message for append in appends for message in append]
    counts = tuple(map(len, appends)) if len(appends) > 1 else ()
    time_ms = draw(st.integers(-(2**40), 2**50))
    return Written(b"".join(messages), tuple(map(len, messages)), counts, time_ms)


def write(
    start: int, given: list[Written], block_bytes: int = pack_format.BLOCK_BYTES
) -> tuple[bytes, bytes]:
    writer = pack_format.PackWriter(start, block_bytes)
    for batch in given:
        writer.add(batch.data, batch.lengths, batch.appends, batch.time_ms)
    assert writer.end == start + sum(len(batch.data) for batch in given)
    return writer.finish()


def stored_of(pack: bytes, entry: pack_format.BlockEntry) -> bytes:
    return pack[entry.first_byte : entry.first_byte + entry.stored_bytes]


def blocks_of(pack: bytes, index: bytes) -> list[pack_format.Block]:
    assert pack_format.read_index(pack) == pack_format.decode_index(index)
    return [
        pack_format.decode_block(entry, stored_of(pack, entry))
        for entry in pack_format.decode_index(index).blocks
    ]


def a_block(
    data: bytes, lengths: list[int], appends: list[int], batches: list[int], times_ms: list[int]
) -> pack_format.Block:
    return pack_format.Block(
        data, array("I", lengths), array("I", appends), array("I", batches), array("q", times_ms)
    )


def an_entry(data: bytes = b"x") -> pack_format.BlockEntry:
    """Of a pack of one batch."""
    [entry] = pack_format.decode_index(write(0, [Written(data, (len(data),), (), 7)])[1]).blocks
    return entry


def fitted(entry: pack_format.BlockEntry, stored: bytes) -> pack_format.BlockEntry:
    """As if these bytes had been written: their length and checksum are right."""
    return replace(entry, stored_bytes=len(stored), checksum=zlib.crc32(stored))


def deflated(content: bytes, level: int = 6) -> bytes:
    return zlib.compress(content, level, -zlib.MAX_WBITS)


@given(st.integers(0, 10**15), st.lists(batches(), min_size=1, max_size=30), st.integers(1, 200))
def test_bytes_lengths_appends_times_come_back(start: int, given: list[Written], block_bytes: int) -> None:
    blocks = blocks_of(*write(start, given, block_bytes))
    assert b"".join(block.data for block in blocks) == b"".join(batch.data for batch in given)
    lengths = [length for block in blocks for length in block.lengths]
    assert lengths == [length for batch in given for length in batch.lengths]
    appends = [count for block in blocks for count in block.appends]
    assert appends == [count for batch in given for count in batch.appends or (len(batch.lengths),)]
    told = [each for block in blocks for each in zip(block.batches, block.times_ms, strict=True)]
    assert told == [(len(batch.lengths), batch.time_ms) for batch in given]


@given(
    st.integers(0, 10**15),
    st.lists(st.lists(batches(), min_size=1, max_size=9), min_size=1, max_size=5),
    st.integers(1, 200),
)
def test_a_pack_of_packs_has_what_they_have(start: int, given: list[list[Written]], block_bytes: int) -> None:
    merged = pack_format.PackWriter(start, block_bytes)
    for written in given:
        pack, index = write(merged.end, written, block_bytes)
        for entry in pack_format.decode_index(index).blocks:
            merged.take(entry, memoryview(stored_of(pack, entry)))
    blocks = blocks_of(*merged.finish())
    found = [
        Written(data, lengths, appends if len(appends) > 1 else (), time_ms)
        for block in blocks
        for data, lengths, appends, time_ms in pack_format.batches_of(block)
    ]
    assert found == [batch for written in given for batch in written]
    # No small block is followed by another small one with which it would still be small.
    sizes = [len(block.data) for block in blocks]
    assert all(one + other >= block_bytes / 2 for one, other in pairwise(sizes))


def test_a_large_block_is_taken_as_it_is_and_a_damaged_one_never() -> None:
    pack, index = write(7, [Written(b"x" * 60, (60,), (), 1)], 100)
    [entry] = pack_format.decode_index(index).blocks
    stored = stored_of(pack, entry)
    merged = pack_format.PackWriter(7, 100)
    merged.take(entry, stored)
    assert merged.finish() == (pack, index)
    for block_bytes in (100, 1000):
        with pytest.raises(pack_format.CorruptPack):
            pack_format.PackWriter(7, block_bytes).take(entry, b"?" + stored[1:])


@given(
    st.integers(0, 10**15),
    st.lists(st.tuples(st.integers(0, 2**34), batches()), min_size=1, max_size=30),
    st.integers(0, 2**34),
    st.integers(1, 200),
)
def test_what_is_left_of_a_stretch_keeps_its_place(
    start: int, given: list[tuple[int, Written]], behind: int, block_bytes: int
) -> None:
    writer, ends = pack_format.PackWriter(start, block_bytes), list[int]()
    for gap, batch in given:
        writer.skip(gap)
        ends += list(accumulate(batch.lengths, initial=writer.reached))[1:]
        writer.add(batch.data, batch.lengths, batch.appends, batch.time_ms)
    writer.skip(behind)
    pack, encoded = writer.finish()
    index = pack_format.decode_index(encoded)
    assert (index.start, index.end) == (start, ends[-1] + behind)
    assert index.data_bytes == sum(len(batch.data) for _, batch in given)
    assert all(one.end == other.start for one, other in pairwise(index.blocks))
    found = list[int]()
    for entry, block in zip(index.blocks, blocks_of(pack, encoded), strict=True):
        gaps = block.gaps or [0] * len(block.lengths)
        found += accumulate(map(add, gaps, block.lengths), initial=entry.start)
        found.remove(entry.start)
        assert len(block.data) == entry.data_bytes
    assert found == ends


@given(st.integers(0, 10**15), st.lists(batches(), min_size=1, max_size=30), st.integers(1, 200), st.data())
def test_blocks_end_where_batches_end_and_are_found_by_an_offset(
    start: int, given: list[Written], block_bytes: int, data: st.DataObject
) -> None:
    index = pack_format.decode_index(write(start, given, block_bytes)[1])
    ends = list(accumulate((len(batch.data) for batch in given), initial=start))
    assert all(block.end in ends for block in index.blocks)
    largest = max(len(batch.data) for batch in given)
    assert all(block.end - block.start <= max(block_bytes, largest) for block in index.blocks)
    offset = data.draw(st.integers(start - 9, index.end - 1))
    expected = tuple(block for block in index.blocks if block.end > offset)
    assert tuple(index.blocks_from(offset)) == expected


def test_blocks_of_the_largest_batches_of_the_table_are_at_least_half_full() -> None:
    given = [Written(random.Random(n).randbytes(65_536), (65_536,), (), 0) for n in range(9)]
    blocks = blocks_of(*write(0, given))
    assert {len(block.data) for block in blocks[:-1]} == {pack_format.BLOCK_BYTES}
    assert b"".join(block.data for block in blocks) == b"".join(batch.data for batch in given)


@given(st.lists(batches(), min_size=1, max_size=12), st.data())
def test_a_block_with_a_byte_changed_or_missing_is_refused(given: list[Written], data: st.DataObject) -> None:
    pack, encoded = write(0, given, 100)
    entry = data.draw(st.sampled_from(pack_format.decode_index(encoded).blocks))
    stored = stored_of(pack, entry)
    place = data.draw(st.integers(0, len(stored) - 1))
    flipped = bytes([stored[place] ^ data.draw(st.integers(1, 255))])
    for damaged in (stored[:place] + flipped + stored[place + 1 :], stored[:place], stored + b"x", b""):
        with pytest.raises(pack_format.CorruptPack):
            pack_format.decode_block(entry, damaged)


def test_a_block_whose_gaps_do_not_fit_its_length_is_refused() -> None:
    writer = pack_format.PackWriter(0, pack_format.BLOCK_BYTES)
    for gap in (0, 9):
        writer.skip(gap)
        writer.add(b"x", (1,), (), 7)
    pack, index = writer.finish()
    [entry] = pack_format.decode_index(index).blocks
    assert pack_format.decode_block(replace(entry, end=12), stored_of(pack, entry)).gaps == array("Q", [0, 9])
    with pytest.raises(pack_format.CorruptPack, match="the gaps of the block at 0 do not add up"):
        pack_format.decode_block(replace(entry, end=10), stored_of(pack, entry))


@given(st.lists(batches(), min_size=1, max_size=12), st.data())
def test_a_block_of_right_checksum_and_wrong_content_fails(given: list[Written], data: st.DataObject) -> None:
    """The checksum of a block that was written wrongly is right; its numbers must add up all the same."""
    pack, encoded = write(0, given)
    [entry] = pack_format.decode_index(encoded).blocks
    plain = zlib.decompress(stored_of(pack, entry), -zlib.MAX_WBITS)
    place = data.draw(st.sampled_from([0, 4, 8, 12]))
    more = struct.pack("<I", struct.unpack_from("<I", plain, place)[0] + data.draw(st.integers(1, 1000)))
    for content in (plain[:place] + more + plain[place + 4 :], plain[:-1], plain + b"x", plain[:11], b""):
        with pytest.raises(pack_format.CorruptPack):
            pack_format.decode_block(fitted(entry, deflated(content)), deflated(content))


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (deflated(b"\0" * 50_000_000, 9), "wrong size"),  # It would inflate without end.
        *((stored, "not deflated") for stored in (b"\xff\xff\xff", b"\6", b"\1\5\0\0\0hello")),
    ],
    ids=["endless", "bad type", "no data", "bad length"],
)
def test_what_does_not_inflate_to_a_block_is_refused(inflated_by: str, stored: bytes, said: str) -> None:
    with pytest.raises(pack_format.CorruptPack, match=said):
        pack_format.decode_block(fitted(an_entry(), stored), stored)


def test_an_index_of_another_size_or_of_a_later_version_is_refused() -> None:
    for encoded in (b"", b"\1", b"\1" + bytes(8), b"\1" + bytes(19), b"\1" + bytes(21)):
        with pytest.raises(pack_format.CorruptPack, match="an index cannot have"):
            pack_format.decode_index(encoded)
    _, encoded = write(0, [Written(b"x", (1,), (), 0)])
    with pytest.raises(pack_format.CorruptPack, match="version 3, and this release reads up to 2"):
        pack_format.decode_index(b"\3" + encoded[1:])


@given(st.data())
def test_an_object_that_is_cut_or_is_no_pack_is_refused(data: st.DataObject) -> None:
    pack, _ = write(0, [Written(b"x" * 100, (100,), (), 0)])
    cut = data.draw(st.integers(0, len(pack) - len(pack_format.MAGIC) - 1))
    for damaged in (pack[:cut], b"x" + pack[1:], pack[:-1] + b"x", pack[:cut] + pack_format.MAGIC):
        with pytest.raises(pack_format.CorruptPack):
            pack_format.read_index(damaged)


def test_a_pack_as_it_is_stored_for_ever() -> None:
    pack = bytes.fromhex(STORED)
    [entry] = pack_format.read_index(pack).blocks
    stored = stored_of(pack, entry)
    assert (entry.start, entry.end) == (42, 53)
    assert pack_format.decode_block(entry, stored) == a_block(
        b'"a","bb",1,', [4, 5, 2], [1, 1, 1], [2, 1], [1767225600000, 1767225600123]
    )


def test_a_compacted_pack_as_it_is_stored_for_ever() -> None:
    """The same messages; nine bytes are gone before the second one, five billion before the third, and seven
    behind it."""
    pack = bytes.fromhex(COMPACTED)
    [entry] = pack_format.read_index(pack).blocks
    assert (entry.start, entry.end, entry.data_bytes) == (42, 69 + 5 * 10**9, 11)
    plain = a_block(b'"a","bb",1,', [4, 5, 2], [1, 1, 1], [1, 1, 1], [1767225600000] * 2 + [1767225600123])
    found = pack_format.decode_block(entry, stored_of(pack, entry))
    assert found == replace(plain, gaps=array("Q", [0, 9, 5 * 10**9]))


COMPACTED = (
    "544944455041434b0200000000000000636660606086621620660562262066c4811956dc2a9bcd88a0ab617c28e084313eb1"
    "6a81849512957494929294740c7500022a000000000000001bf2052a010000000b00000031000000965437a11d000000b068"
    "5f1d544944455041434b"
)
STORED = (
    "544944455041434b010000000000000063666060600662262066016256289b1109c3f80c2b6e95cd0632aaa1b452a2928e52"
    "5292928ea10e00012a000000000000000b00000029000000716baba61500000094ebdbe1544944455041434b"
)


@pytest.mark.parametrize("skipped", range(8))
def test_the_times_behind_the_first_messages_of_a_block_are_those_of_their_batches(skipped: int) -> None:
    counts, times_ms = [2, 1, 4], [10, 20, 10]
    left = pack_format.BatchTimes(array("I", counts), array("q", times_ms)).without_first(skipped)
    of_each = [ms for count, ms in zip(counts, times_ms, strict=True) for _ in range(count)]
    told = [ms for count, ms in zip(left.messages, left.times_ms, strict=True) for _ in range(count)]
    assert told == of_each[skipped:]
    assert 0 not in left.messages

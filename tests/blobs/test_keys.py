"""The names of objects, and of bytes that are in several."""

from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from tidemark.blobs import batch_blob_key, joined_key, objects_of, parts_of
from tidemark.log.records import Checksums

ids = st.text("abcXYZ019_-", min_size=1, max_size=16)


@given(st.lists(st.tuples(ids, st.integers(1, 1 << 22)), min_size=1, max_size=5))
def test_the_name_of_several_objects_says_which_and_how_large(named: list[tuple[str, int]]) -> None:
    parts = [(batch_blob_key("Zk3v9QpLw2Xa_-01", name), size) for name, size in named]
    key = joined_key(parts)
    assert parts_of(key, sum(size for _, size in parts)) == parts
    assert objects_of([key, "log/a/one"]) == [*(name for name, _ in parts), "log/a/one"]


@given(st.none() | st.integers(0, 2**32 - 1), st.integers(0, 2**53), st.lists(st.binary(), min_size=1))
def test_bytes_have_the_checksum_of_their_parts(before: int | None, start: int, bodies: list[bytes]) -> None:
    of_bodies = Checksums.of_bodies(before, start, [(crc32(body), len(body)) for body in bodies])
    assert of_bodies == Checksums.of(before, start, b"".join(bodies))

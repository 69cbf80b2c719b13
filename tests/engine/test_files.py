"""Blobs as files: whole or not there, and what is damaged is not handed out."""

from pathlib import Path
from zlib import crc32

import pytest

from tests.support import recorded_writes
from tidemark.blobs import Composition, Stored, joined_key
from tidemark.engine.files import BlobFiles
from tidemark.protocol.errors import Damaged, StorageUnavailable


@pytest.fixture
def blobs(tmp_path: Path) -> BlobFiles:
    return BlobFiles(tmp_path / "blobs")


def test_a_blob_is_there_whole_under_its_name(blobs: BlobFiles) -> None:
    blobs.put("log/a/one", b"0123456789")
    assert blobs.get("log/a/one") == blobs.get("log/a/one", 10) == b"0123456789"
    assert blobs.get_range("log/a/one", 3, 4) == b"3456"
    assert blobs.stored("log/a/one") == Stored(10, crc=crc32(b"0123456789"))
    assert blobs.stored("log/a/none") is None
    crc = blobs.compose("log/a/two", Composition("text/plain", b"<", "log/a/one", 10, b">"))
    assert blobs.get("log/a/two") == b"<0123456789>"
    assert crc == crc32(b"<0123456789>")


def test_what_fails_leaves_no_part_of_a_blob(blobs: BlobFiles) -> None:
    with pytest.raises(ZeroDivisionError), blobs.writing("log/a/one") as file:
        file.write(b"half" * (1 // 0))
    assert list((blobs.root / "log/a").iterdir()) == []
    with pytest.raises(StorageUnavailable):
        blobs.get("log/a/one")


def test_a_blob_of_another_size_is_damaged(blobs: BlobFiles) -> None:
    blobs.put("log/a/one", b"0123456789")
    for size in (9, 11):
        with pytest.raises(Damaged):
            blobs.get("log/a/one", size)
    with pytest.raises(Damaged):
        blobs.get_range("log/a/one", 8, 3)
    with pytest.raises(Damaged):
        blobs.compose("log/a/two", Composition("text/plain", b"", "log/a/one", 11, b""))
    assert blobs.stored("log/a/two") is None


def test_removing_what_is_not_there_is_no_error_and_takes_nothing_else(blobs: BlobFiles) -> None:
    for key in ("log/a/one", "log/ab/one", "snapshot/a/1-x", "snapshot/a/1-y", "snapshot/a/2-x"):
        blobs.put(key, b"x")
    blobs.put("log/b/one", b"1")
    blobs.put("log/b/two", b"2")
    blobs.delete("log/a/none", "snapshot/none/x", joined_key([("log/b/one", 1), ("log/b/two", 1)]))
    blobs.delete_prefix("log/a/")
    blobs.delete_prefix("log/none/")
    blobs.delete_prefix("snapshot/a/1-")
    left = sorted(str(path.relative_to(blobs.root)) for path in blobs.root.rglob("*") if path.is_file())
    assert left == ["log/ab/one", "snapshot/a/2-x"]


def test_the_key_that_signs_urls_outlives_the_process(blobs: BlobFiles) -> None:
    again = BlobFiles(blobs.root)
    signed = blobs.signature("GET", "log/a/one", {"until": "100"})
    assert again.signature("GET", "log/a/one", {"until": "100"}) == signed
    others = [
        ("PUT", "log/a/one", {"until": "100"}),
        ("GET", "log/a/two", {"until": "100"}),
        ("GET", "log/a/one", {"until": "101"}),
        ("GET", "log/a/one", {"until": "100", "crc": "00000000"}),
    ]
    assert signed not in [again.signature(*each) for each in others]


def test_a_blob_is_on_disk_before_it_is_named(blobs: BlobFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recorded_writes(monkeypatch)
    blobs.put("log/a/one", b"0123456789")
    assert made == ["sync one", "name one", "sync a"]

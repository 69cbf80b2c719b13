"""Objects of the local S3 that are read as files: the same bytes and the same failures as by S3's own way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import urllib3

from tests.available import require_engine
from tidemark.aws.account import Account
from tidemark.aws.s3 import connect_objects
from tidemark.blobs.compose import SMALL_OBJECT, Composition
from tidemark.blobs.store import BlobStore, batch_blob_key, snapshot_blob_key
from tidemark.local.configuration import LocalEngines
from tidemark.local.endpoints import VARIABLES
from tidemark.local.engines import LocalServices
from tidemark.local.on_loop.object_files import ObjectFiles
from tidemark.protocol.errors import Damaged, StorageUnavailable

BUCKET = "files"
KEY = batch_blob_key("i", "a")
DATA = bytes(range(256)) * 500


@pytest.fixture(scope="module")
def durable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServices]:
    require_engine("ministack")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ENDPOINT_URL", *VARIABLES.values()):
            patch.delenv(name, raising=False)
        with LocalServices(tmp_path_factory.mktemp("data"), only=("s3",)) as services:
            services.create_bucket(BUCKET)
            yield services


class Reader:
    """Objects read as files, by a process that has just begun; `asked` is what S3 was asked for."""

    def __init__(self, services: LocalServices) -> None:
        engines = LocalEngines.from_environment(services.environment)
        assert engines.object_files is not None
        self.directory = engines.object_files / BUCKET
        self.asked: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            for name, value in services.environment.items():
                patch.setenv(name, value)
            self.objects = connect_objects(Account(), BUCKET, endpoint=os.environ[VARIABLES["s3"]])
            self.client = boto3.client("s3")
        send = self.objects.send

        def noting(operation: str, key: str, body: bytes) -> tuple[int, bytes]:
            self.asked.append(operation)
            return send(operation, key, body)

        self.objects.send = ObjectFiles(self.directory, noting)
        self.objects.sleep = lambda _seconds: None
        self.blobs = BlobStore(self.objects, lambda: self.client, BUCKET)


@pytest.fixture
def reader(durable: LocalServices) -> Iterator[Reader]:
    made = Reader(durable)
    yield made
    made.client.close()


def test_an_object_is_a_file_as_soon_as_it_is_acknowledged(reader: Reader) -> None:
    for key in (KEY, snapshot_blob_key("i", 7, "m"), f"{snapshot_blob_key('i', 7, 'm')}.bootstrap"):
        reader.objects.put(key, DATA)
        assert reader.objects.get(key, len(DATA)) == DATA
        assert reader.objects.get_range(key, 300, 1000) == DATA[300:1300]
    assert reader.asked == ["PutObject"] * 3


def test_composed_and_uploaded_objects_are_files_too(reader: Reader) -> None:
    """A copy in parts, and an upload to a presigned URL."""
    source, whole, uploaded = (snapshot_blob_key("i", 8, mark) for mark in ("source", "whole", "uploaded"))
    large = b"tide" * (SMALL_OBJECT // 4 + 1000)
    reader.objects.put(source, large)
    reader.blobs.compose(whole, Composition("text/plain", b"<", source, len(large), b">"))
    url = reader.blobs.url_to_put(uploaded, 60)
    assert urllib3.PoolManager().request("PUT", url, body=DATA).status == 200
    reader.asked.clear()
    assert reader.objects.get(whole) == b"<" + large + b">"
    assert reader.objects.get(uploaded) == DATA
    assert reader.asked == []


def test_a_new_process_reads_the_files_of_earlier_ones(durable: LocalServices, reader: Reader) -> None:
    reader.objects.put(KEY, DATA)
    another = Reader(durable)
    assert another.objects.get(KEY) == DATA
    assert another.asked == []
    another.client.close()


def test_a_deleted_object_has_no_file(reader: Reader) -> None:
    reader.objects.put(KEY, DATA)
    reader.blobs.delete(KEY)
    with pytest.raises(StorageUnavailable):
        reader.objects.get(KEY)
    reader.objects.put(KEY, DATA)
    reader.blobs.delete_prefix("log/i/")
    with pytest.raises(StorageUnavailable):
        reader.objects.get_range(KEY, 0, 5)
    assert reader.asked == ["PutObject", "GetObject", "PutObject", "GetRange"]


def test_an_object_whose_name_is_no_path_is_asked_of_s3(reader: Reader) -> None:
    """ministack stores them under another name, and the path may be that of another object."""
    reader.objects.put("log/i/b", b"another object")
    reader.asked.clear()
    for key in ("log/i//b", "log/../log/i/b", "/log/i/b", "log/i/b.meta.json"):
        reader.objects.put(key, DATA)
        assert reader.objects.get(key, len(DATA)) == DATA
    assert reader.asked == ["PutObject", "GetObject"] * 4


@pytest.mark.parametrize("left", [0, 10])
def test_a_file_of_the_wrong_size_is_not_returned(reader: Reader, left: int) -> None:
    key = batch_blob_key("i", f"cut{left}")
    reader.objects.put(key, DATA)
    os.truncate(reader.directory / key, left)
    with pytest.raises(Damaged):
        reader.objects.get(key, len(DATA))


def test_objects_of_a_bucket_in_memory_are_asked_of_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    require_engine("ministack")
    for name in ("AWS_ENDPOINT_URL", *VARIABLES.values()):
        monkeypatch.delenv(name, raising=False)
    with LocalServices(in_memory=True, only=("s3",)) as services:
        assert "OBJECT_FILES" not in services.environment


def test_objects_are_asked_of_an_s3_of_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    with LocalServices(tmp_path, only=("s3",)) as services:
        assert "OBJECT_FILES" not in services.environment

"""The bucket is gone, silent, or closed to us: large bodies wait, everything else goes on.

`test_table_fails.py` shows what each way in answers to the errors that are raised here.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.buckets import key_in_new_bucket, publish
from tests.faults.aws import OUT_OF_REACH, Breakable
from tests.support import HOUR_MS, Process, World, a_key
from tidemark.aws.clients import s3_client
from tidemark.blobs import BlobStore, snapshot_blob_key
from tidemark.janitor.sweep import sweep
from tidemark.log.tails import RecentBatches
from tidemark.protocol.append import Kind
from tidemark.protocol.errors import StorageUnavailable, StreamNotFound, UploadNotFound
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.snapshots import begin_upload, bootstrap, latest_snapshot, read_snapshot

SMALL, LARGE = b"small", b"x" * 70_000
CLAIM = ("p", 0, 0)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Breakable:
    # Trying again takes no time.
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    return Breakable(s3_client())


@pytest.fixture
def process(world: World, s3: Breakable) -> Process:
    """Both of its ways to the bucket can fail."""
    process = world.process()
    process.stores.blobs = BlobStore(s3.breaking(process.objects), lambda: s3.client, world.bucket_name)
    return process


@contextmanager
def out_of_reach() -> Iterator[None]:
    """The request is refused with what promises that nothing has changed."""
    with pytest.raises(StorageUnavailable):
        yield


@pytest.mark.parametrize("fault", OUT_OF_REACH)
def test_a_large_append_is_refused_and_lands_once_later(process: Process, s3: Breakable, fault: str) -> None:
    """The body comes before the batch that points to it, so a refusal is a promise: nothing was written."""
    key = a_key()
    process.create(key, body=SMALL)
    with s3.failing(OUT_OF_REACH[fault]):
        with out_of_reach():
            process.append(key, LARGE, claim=CLAIM)
        process.append(key, SMALL)
        assert process.read_all(key) == SMALL * 2, "small appends and reads go on"
    assert process.append(key, LARGE, claim=CLAIM).kind is Kind.APPENDED
    assert process.append(key, LARGE, claim=CLAIM).kind is Kind.DUPLICATE
    assert process.read_all(key) == SMALL * 2 + LARGE


@pytest.mark.parametrize("fault", OUT_OF_REACH)
def test_what_boto3_cannot_reach_is_out_of_reach(process: Process, s3: Breakable, fault: str) -> None:
    with s3.failing(OUT_OF_REACH[fault]), out_of_reach():
        process.stores.blobs.delete("a")


def test_a_creation_with_a_large_body_creates_nothing(process: Process, s3: Breakable) -> None:
    key = a_key()
    with s3.failing(OUT_OF_REACH["no connection"]):
        with out_of_reach():
            process.create(key, body=LARGE)
        with pytest.raises(StreamNotFound):
            load_head(process.stores, key)
    assert process.create(key, body=LARGE).is_new
    assert process.read_all(key) == LARGE


def test_only_pages_with_a_large_body_cannot_be_read(process: Process, s3: Breakable) -> None:
    key = a_key()
    process.create(key, body=LARGE)
    process.append(key, SMALL)
    process.stores.recent = RecentBatches(1 << 20)
    with s3.failing(OUT_OF_REACH["no connection"]):
        with out_of_reach():
            read(process.stores, key, 0)
        assert read(process.stores, key, len(LARGE)).data == SMALL
    assert process.read_all(key) == LARGE + SMALL


def test_a_snapshot_that_cannot_be_stored_leaves_the_one_before(process: Process, s3: Breakable) -> None:
    """Neither published by half nor lost; the messages behind it can be read."""
    key = key_in_new_bucket(process)
    process.create(key, body=b"abcdef")
    publish(process, key, 0, b"the first")
    with s3.failing(OUT_OF_REACH["no connection"]):
        with out_of_reach():
            publish(process, key, 6, b"the second")
        assert latest_snapshot(process.stores, key).offset == 0
        with out_of_reach():
            read_snapshot(process.stores, key, 0)
        with out_of_reach():
            bootstrap(process.stores, key)
        assert process.read_all(key) == b"abcdef", "nothing was trimmed"
    assert read_snapshot(process.stores, key, 0).data == b"the first"
    assert publish(process, key, 6, b"the second").offset == 6


def test_an_upload_can_be_published_once_s3_is_back(process: Process, s3: Breakable) -> None:
    """What was uploaded stays where it is until it can be looked at again."""
    key = key_in_new_bucket(process)
    process.create(key, body=b"abcdef")
    upload = begin_upload(process.stores, key, 6).id
    incarnation = load_head(process.stores, key).record.incarnation
    process.stores.blobs.put(snapshot_blob_key(incarnation, 6, upload.mark), b"folded")
    for fault in ("no connection", "silence", "internal error"):
        with s3.failing(OUT_OF_REACH[fault]), out_of_reach():
            publish(process, key, 6, upload=upload)
    # S3 says this of an object that is not there as well, where listing is not allowed.
    with s3.failing(OUT_OF_REACH["forbidden"]), pytest.raises(UploadNotFound):
        publish(process, key, 6, upload=upload)
    publish(process, key, 6, upload=upload)
    assert read_snapshot(process.stores, key, 6).data == b"folded"


def test_the_janitor_reclaims_later_what_s3_kept(world: World, process: Process, s3: Breakable) -> None:
    """What is due stays due. The round has failed, so somebody hears of it."""
    key = a_key()
    process.create(key, body=LARGE)
    delete(process.stores, key)
    world.clock.advance(2 * HOUR_MS)
    with s3.failing(OUT_OF_REACH["no connection"]), out_of_reach():
        sweep(process.stores)
    assert sweep(process.stores).reclaimed == 1

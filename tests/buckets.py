"""Short names for what tests of buckets and snapshots do all the time."""

import uuid
from collections.abc import Callable

from tests.support import BYTES, Process, World, before
from tidemark.blobs import snapshot_prefix
from tidemark.log.read import load_stream
from tidemark.log.records import Snapshot, StreamRecord
from tidemark.log.schema import COMPACTED, INCARNATION, log_pk, stream_key
from tidemark.log.table import Present, Update, Write
from tidemark.protocol.messages import ContentType
from tidemark.protocol.snapshot import UploadId
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.buckets import create_bucket
from tidemark.service.snapshots import PublishRequest, publish_snapshot


def new_bucket(process: Process) -> str:
    return create_bucket(process.stores, f"b-{uuid.uuid4().hex[:12]}").bucket


def key_in_new_bucket(process: Process, name: str = "a") -> StreamKey:
    return StreamKey(new_bucket(process), name)


def publish(
    process: Process,
    key: StreamKey,
    offset: int,
    body: bytes = b"snapshot",
    *,
    content_type: ContentType = BYTES,
    upload: UploadId | None = None,
) -> Snapshot:
    return publish_snapshot(process.stores, key, PublishRequest(offset, content_type, body, upload))


def record_of(process: Process, key: StreamKey) -> StreamRecord:
    record = load_stream(process.stores.table, key)
    assert record is not None
    return record


def move_compacted(process: Process, key: StreamKey, offset: int) -> None:
    """As a compaction's transaction does, of messages that nothing has superseded."""
    update = Update(stream_key(key), {COMPACTED: {"N": str(offset)}})
    is_there = Present(INCARNATION)
    process.stores.table.transact([Write(update, condition=is_there)])


def batch_starts(process: Process, key: StreamKey) -> list[int]:
    """Of the batches that are still in the table."""
    pk = log_pk(key, record_of(process, key).incarnation)
    items, _ = process.stores.table.query(pk, attributes=("sk",))
    return [int(item["sk"]["S"][:16]) for item in items]


def objects(process: Process, world: World, prefix: str) -> list[str]:
    answer = process.s3.list_objects_v2(Bucket=world.bucket_name, Prefix=prefix)
    return [found["Key"] for found in answer.get("Contents", [])]


def snapshot_objects(process: Process, world: World, key: StreamKey) -> list[str]:
    return objects(process, world, snapshot_prefix(record_of(process, key).incarnation))


def insert_before_commit(process: Process, action: Callable[[], object]) -> None:
    """Do this once, just before the process sends its next transaction."""
    pending = [action]

    def act(operation: str) -> None:
        if operation == "TransactWriteItems" and pending:
            pending.pop()()

    before(process.dynamodb, act)

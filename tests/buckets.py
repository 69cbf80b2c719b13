"""Short names for what tests of buckets and snapshots do all the time."""

from __future__ import annotations

import uuid

from tests.support import BYTES, Process
from tidemark.log.records import Snapshot
from tidemark.protocol.content_type import ContentType
from tidemark.protocol.snapshot import UploadId
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.buckets import create_bucket
from tidemark.service.publish_snapshot import PublishRequest, publish_snapshot


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

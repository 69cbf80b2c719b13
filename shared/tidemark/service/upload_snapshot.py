"""Uploading a snapshot that is too large for one request: straight to S3, then published by name.

An extension of ours; a client that does not know it needs nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.blobs.store import snapshot_blob_key
from tidemark.log.due import schedule_once
from tidemark.protocol.snapshot import UploadId
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.publish_snapshot import check_snapshot_offset, upload_due
from tidemark.service.stores import Stores

#: An upload must begin within this time,
URL_SECONDS: Final = 60 * 60
#: and be published within this one.
LAPSES_AFTER_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Upload:
    id: UploadId
    url: str
    url_expires_ms: int


def begin_upload(stores: Stores, key: StreamKey, offset: int) -> Upload:
    """A URL to upload the blob of a snapshot at `offset` to. Raises as `publish_snapshot`."""
    record = check_snapshot_offset(stores, key, offset)
    now_ms = stores.clock_ms()
    upload = UploadId(now_ms + LAPSES_AFTER_MS, stores.new_id())
    blob = snapshot_blob_key(record.incarnation, offset, upload.mark)
    schedule_once(stores.table, upload_due(record, blob, upload))
    return Upload(upload, stores.blobs.url_to_put(blob, URL_SECONDS), now_ms + URL_SECONDS * 1000)

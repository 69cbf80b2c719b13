"""Publishes and finds snapshots: through a server, or by the application's own rules in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urljoin, urlsplit

import orjson

from tidemark.blobs import snapshot_blob_key
from tidemark.log.read import load_stream
from tidemark.protocol.errors import Busy, OutcomeUnknown, ProtocolError, SnapshotNotFound
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.offset import parse_token, render_offset
from tidemark.service.load import require_live
from tidemark.service.snapshots import (
    MAX_ANSWER_BYTES,
    PublishRequest,
    begin_upload,
    latest_snapshot,
    publish_snapshot,
)
from tidemark.spark.http_client import REDIRECTS, HttpClient, HttpFault, retry
from tidemark.spark.options import ConnectionOptions, Transport
from tidemark.spark.storage import LogWriter

#: Somebody published a later one, or the stream was created again: theirs counts.
_CONFLICTS: Final = frozenset({404, 409, 410})
_OFFSET: Final = "Stream-Snapshot-Offset"


@dataclass(frozen=True)
class PublishedSnapshot:
    """The snapshot that is there."""

    offset: str
    body: bytes


class SnapshotRefused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.is_conflict = status in _CONFLICTS


class SnapshotStore(Protocol):
    def latest(self, stream: str) -> PublishedSnapshot | None: ...

    def publish(self, stream: str, offset: str, content_type: str, body: bytes) -> None:
        """Raises SnapshotRefused."""


def connect_snapshots(connection: ConnectionOptions) -> SnapshotStore:
    if connection.transport is Transport.HTTP:
        return HttpSnapshots(connection)
    return LogSnapshots(connection)


class HttpSnapshots:
    def __init__(self, connection: ConnectionOptions) -> None:
        self._connection = connection
        self._client = HttpClient(connection.token, retry_seconds=connection.retry_seconds)
        #: For addresses that carry their own permission.
        self._bare = HttpClient(None, retry_seconds=connection.retry_seconds)

    def _url(self, stream: str, offset: str = "") -> str:
        return f"{self._connection.stream_url(stream)}/snapshot{offset and '/' + offset}"

    def latest(self, stream: str) -> PublishedSnapshot | None:
        """The first answer that can says which: a large one's bytes lie elsewhere, and say nothing."""
        url = self._url(stream)
        answer = self._client.request("GET", url, redirect=False, allow=REDIRECTS | {404})
        if answer.status == 404:
            return None
        offset = answer.headers.get(_OFFSET)
        if answer.status in REDIRECTS:
            url = urljoin(url, answer.headers["Location"])
            answer = self._at(url).request("GET", url)
            offset = offset or answer.headers.get(_OFFSET)
        if offset is None:
            raise SnapshotRefused(answer.status, f"tidemark: {url}: the answer has no {_OFFSET}")
        return PublishedSnapshot(offset, answer.data)

    def _at(self, url: str) -> HttpClient:
        """Sends the token only to the server itself."""
        return self._client if urlsplit(url).netloc == urlsplit(self._connection.url).netloc else self._bare

    def publish(self, stream: str, offset: str, content_type: str, body: bytes) -> None:
        url, headers = self._url(stream, offset), {"Content-Type": content_type}
        try:
            if len(body) > MAX_ANSWER_BYTES:
                # A body too large for a request goes straight to S3 (docs/buckets-and-snapshots.md).
                begun = orjson.loads(self._client.request("POST", f"{url}/upload").data)
                # 412: a try before this one has put it there.
                self._bare.request(
                    "PUT", begun["url"], headers=begun.get("headers"), body=body, allow=frozenset({412})
                )
                headers["Snapshot-Upload"], body = begun["upload"], b""
            self._client.request("PUT", url, headers=headers, body=body)
        except HttpFault as fault:
            raise SnapshotRefused(fault.status, str(fault)) from fault


class LogSnapshots(LogWriter):
    """Publishes snapshots as the server does, without one."""

    def latest(self, stream: str) -> PublishedSnapshot | None:
        try:
            snapshot = latest_snapshot(self._stores, self._key(stream))
        except SnapshotNotFound:
            return None
        return PublishedSnapshot(render_offset(snapshot.offset), self._stores.snapshot_blob(snapshot))

    def publish(self, stream: str, offset: str, content_type: str, body: bytes) -> None:
        key, place = self._key(stream), parse_token(offset)
        assert place is not None, "an offset of this transport"
        kind = parse_content_type(content_type)

        def once() -> None:
            request = PublishRequest(place, kind, body)
            if len(body) > MAX_ANSWER_BYTES:
                # A body too large for one response is published as an upload: its bootstrap is assembled
                # then.
                upload = begin_upload(self._stores, key, place).id
                record = require_live(load_stream(self._stores.table, key))
                self._stores.blobs.put(snapshot_blob_key(record.incarnation, place, upload.mark), body)
                request = PublishRequest(place, kind, upload=upload)
            publish_snapshot(self._stores, key, request)

        try:
            retry(once, self._retry_seconds, Busy, OutcomeUnknown)
        except ProtocolError as refusal:
            raise SnapshotRefused(refusal.status, f"{stream}: {refusal.message}") from refusal

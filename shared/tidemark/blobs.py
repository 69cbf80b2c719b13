"""The interface to S3: object names, and reads, writes and removal of objects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, Protocol

from tidemark.aws.clients import s3_failures
from tidemark.aws.retry import Failure, NoAnswer
from tidemark.aws.s3 import Objects, Refusal, storage_error
from tidemark.protocol.errors import Damaged, StorageUnavailable
from tidemark.protocol.offset import render_offset

_log: Final = logging.getLogger("tidemark")

_MEGABYTE: Final = 1024 * 1024
#: S3 accepts no smaller part, except the last one.
_SMALLEST_PART: Final = 5 * _MEGABYTE
#: Up to this size, reading the object and writing it again is simpler and takes fewer calls.
SMALL_OBJECT: Final = 4 * _SMALLEST_PART
#: S3 copies each part at about 100 MB/s. A part of this size is copied before its client times out.
_COPIED_PART: Final = 64 * _MEGABYTE
_AT_ONCE: Final = 16
#: Separators in a name that stands for several objects. Neither occurs in the name of one object.
_NEXT_PART: Final = "+"
_SIZE: Final = ":"
#: The most objects that one S3 call removes.
_MOST_DELETED: Final = 1000


@dataclass(frozen=True, slots=True)
class Stored:
    """An existing object: its size in bytes, and its entity tag (S3) or CRC-32 (files)."""

    size: int
    etag: str | None = None
    crc: int | None = None


@dataclass(frozen=True, slots=True)
class Composition:
    """A new object: `before`, then the `size` bytes of the object `source`, then `after`. With `etag`, the
    source is copied only if its tag is the same."""

    content_type: str
    before: bytes
    source: str
    size: int
    after: bytes
    etag: str | None = None


def compose(client: Any, bucket: str, key: str, wanted: Composition) -> None:
    """Write the object completely or not at all. Raises boto3's errors, and NoAnswer."""
    if wanted.size <= SMALL_OBJECT:
        unchanged = {} if wanted.etag is None else {"IfMatch": wanted.etag}
        middle = _read(client, wanted.size, Bucket=bucket, Key=wanted.source, **unchanged)
        body = wanted.before + middle + wanted.after
        client.put_object(Bucket=bucket, Key=key, Body=body, ContentType=wanted.content_type)
        return
    upload = {"Bucket": bucket, "Key": key}
    started = client.create_multipart_upload(**upload, ContentType=wanted.content_type)
    upload["UploadId"] = started["UploadId"]
    try:
        parts = _upload_parts(client, upload, wanted)
        client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    except BaseException:
        client.abort_multipart_upload(**upload)
        raise


def _upload_parts(client: Any, upload: dict[str, str], wanted: Composition) -> list[dict[str, Any]]:
    """Upload the parts. `before` alone may be too small, so the first part includes 5 MB of the source."""
    source = {"Bucket": upload["Bucket"], "Key": wanted.source}
    rest = wanted.size - _SMALLEST_PART
    count = -(-rest // _COPIED_PART)
    edges = [_SMALLEST_PART + rest * index // count for index in range(count + 1)]  # No part is too small.
    ranges = [f"bytes={first}-{behind - 1}" for first, behind in pairwise(edges)]
    unchanged = {} if wanted.etag is None else {"IfMatch": wanted.etag}
    copy_unchanged = {} if wanted.etag is None else {"CopySourceIfMatch": wanted.etag}
    head = _read(client, _SMALLEST_PART, **source, **unchanged, Range=f"bytes=0-{_SMALLEST_PART - 1}")

    def put(number: int, body: bytes) -> dict[str, Any]:
        reply = client.upload_part(**upload, PartNumber=number, Body=body)
        return {"PartNumber": number, "ETag": reply["ETag"]}

    def copy(numbered: tuple[int, str]) -> dict[str, Any]:
        number, byte_range = numbered
        copied = {"CopySource": source, "CopySourceRange": byte_range, **copy_unchanged}
        reply = client.upload_part_copy(**upload, PartNumber=number, **copied)
        return {"PartNumber": number, "ETag": reply["CopyPartResult"]["ETag"]}

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        middle = pool.map(copy, enumerate(ranges, start=2))
        return [put(1, wanted.before + head), *middle, put(len(ranges) + 2, wanted.after)]


def _read(client: Any, size: int, **request: str) -> bytes:
    """Return the bytes. Raises NoAnswer if there are not exactly `size` bytes."""
    data: bytes = client.get_object(**request)["Body"].read()
    if len(data) != size:
        raise NoAnswer(f"{request['Key']} has {len(data)} bytes in place of {size}")
    return data


def batch_blob_key(incarnation: str, append_id: str) -> str:
    """Return the key of a batch's body. Removing the log by its prefix removes unused bodies too."""
    return f"{log_prefix(incarnation)}{append_id}"


def log_prefix(incarnation: str) -> str:
    return f"log/{incarnation}/"


def joined_key(parts: Sequence[tuple[str, int]]) -> str:
    """Return a name for the joined bytes of several objects of one incarnation, made from their keys and
    sizes. The name is used as an object's key, so a batch of many bodies needs no form of its own."""
    if len(parts) == 1:
        return parts[0][0]
    prefix = parts[0][0].rpartition("/")[0]
    return f"{prefix}/" + _NEXT_PART.join(f"{key.rpartition('/')[2]}{_SIZE}{size}" for key, size in parts)


def parts_of(key: str, size: int) -> list[tuple[str, int]]:
    """Return the keys and sizes of the objects behind a key: for most keys, the object itself."""
    if _NEXT_PART not in key:
        return [(key, size)]
    prefix, _, names = key.rpartition("/")
    parts = (part.partition(_SIZE) for part in names.split(_NEXT_PART))
    return [(f"{prefix}/{name}", int(part_size)) for name, _, part_size in parts]


def objects_of(keys: Iterable[str]) -> list[str]:
    return [name for key in keys for name, _ in parts_of(key, 0)]


def snapshot_blob_key(incarnation: str, offset: int, mark: str) -> str:
    """Return the key of a snapshot. `mark` is unique for each publish, so no blob is overwritten."""
    return f"{snapshot_prefix(incarnation)}{render_offset(offset)}-{mark}"


def snapshot_prefix(incarnation: str) -> str:
    return f"snapshot/{incarnation}/"


def bootstrap_blob_key(snapshot_blob: str) -> str:
    """Return the key of a snapshot's bootstrap response, for a response that is too large for Lambda."""
    return f"{snapshot_blob}.bootstrap"


#: Headers of a PUT to a signed URL, which allows no others: S3 then refuses to overwrite an object (412).
PUT_HEADERS: Final = {"If-None-Match": "*"}


class Blobs(Protocol):
    """Immutable objects by name."""

    def put(self, key: str, data: bytes) -> None: ...

    def get(self, key: str, size: int | None = None) -> bytes:
        """Return the object. Raises Damaged if it does not have `size` bytes."""

    def get_range(self, key: str, first_byte: int, size: int) -> bytes:
        """Return a part of an object. Raises Damaged if the object does not have these bytes."""

    def stored(self, key: str) -> Stored | None:
        """Return None if the object does not exist."""

    def compose(self, key: str, wanted: Composition) -> int | None:
        """Return the object's CRC-32; None from S3, which checks its objects itself."""

    def url_to_get(
        self, key: str, seconds: int, content_type: str | None = None, known: Stored | None = None
    ) -> str:
        """Return a URL with which anybody may read this object for `seconds`. A browser saves the object and
        does not show it, because S3 sends no policy against scripts. If the object is no longer the `known`
        one, it is never served whole; raises Damaged if the difference is visible here."""

    def url_to_put(self, key: str, seconds: int) -> str:
        """Return a URL for one write of this object, within `seconds`, with the headers `PUT_HEADERS`."""

    def delete(self, *keys: str) -> None:
        """Remove the objects behind these keys. A missing object is no error."""

    def delete_prefix(self, prefix: str) -> None:
        """Remove every object whose key has this prefix."""


class BlobStore:
    """Immutable objects in one bucket. Whole objects go through `objects`, everything else through boto3's
    client. The first use creates the client, which takes 80 ms."""

    def __init__(self, objects: Objects, make_client: Callable[[], Any], bucket: str) -> None:
        self.objects = objects
        self._make_client = make_client
        self._bucket = bucket

    @cached_property
    def _client(self) -> Any:
        return self._make_client()

    def put(self, key: str, data: bytes) -> None:
        self.objects.put(key, data)

    def get(self, key: str, size: int | None = None) -> bytes:
        return self.objects.get(key, size)

    def get_range(self, key: str, first_byte: int, size: int) -> bytes:
        return self.objects.get_range(key, first_byte, size)

    def stored(self, key: str) -> Stored | None:
        """Return the object's size and tag; None if it does not exist. Without the permission to list, S3
        answers 403 for a missing object.

        The request is a GET of the first byte. The response to a HEAD has no body, so a size that was cut off
        in the headers would go unnoticed.
        """
        with _translated():
            try:
                with s3_failures():
                    reply = self._client.get_object(Bucket=self._bucket, Key=key, Range="bytes=0-0")
                    reply["Body"].read()
            except Refusal as refusal:
                if refusal.status == 416:
                    return Stored(0)
                if refusal.status in {403, 404}:
                    return None
                raise
        return Stored(int(reply["ContentRange"].rpartition("/")[2]), etag=reply["ETag"])

    def compose(self, key: str, wanted: Composition) -> None:
        with _translated():
            compose(self._client, self._bucket, key, wanted)

    def url_to_get(
        self, key: str, seconds: int, content_type: str | None = None, known: Stored | None = None
    ) -> str:
        if known and known.etag and (found := self.stored(key)) and found.etag != known.etag:
            _log.error("a stored object is damaged: %s has the tag %s, not %s", key, found.etag, known.etag)
            raise Damaged
        arguments = {"Bucket": self._bucket, "Key": key, "ResponseContentDisposition": "attachment"}
        if content_type is not None:
            arguments["ResponseContentType"] = content_type
        url: str = self._client.generate_presigned_url("get_object", Params=arguments, ExpiresIn=seconds)
        return url

    def url_to_put(self, key: str, seconds: int) -> str:
        arguments = {"Bucket": self._bucket, "Key": key, "IfNoneMatch": PUT_HEADERS["If-None-Match"]}
        url: str = self._client.generate_presigned_url("put_object", Params=arguments, ExpiresIn=seconds)
        return url

    def delete(self, *keys: str) -> None:
        objects = objects_of(keys)
        with _translated():
            for first in range(0, len(objects), _MOST_DELETED):
                self._delete(objects[first : first + _MOST_DELETED])

    def delete_prefix(self, prefix: str) -> None:
        """Remove every object whose key has this prefix, 1,000 at a time."""
        with _translated():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            for page in pages:
                keys = [found["Key"] for found in page.get("Contents", [])]
                if keys:
                    self._delete(keys)

    def _delete(self, keys: Sequence[str]) -> None:
        """Remove the objects. S3 replies 200 and lists the objects that it could not delete."""
        objects = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        reply = self._client.delete_objects(Bucket=self._bucket, Delete=objects)
        if failed := reply.get("Errors"):
            raise StorageUnavailable from Refusal("DeleteObjects", 200, failed[0].get("Code", ""))


@contextmanager
def _translated() -> Iterator[None]:
    try:
        with s3_failures():
            yield
    except Failure as failure:
        raise storage_error(failure) from failure

"""One S3 object made of bytes, another object, and bytes, without moving the other one here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from tidemark.aws.retry import NoAnswer

_MEGABYTE: Final = 1024 * 1024
#: S3 accepts no smaller part, except the last one.
_SMALLEST_PART: Final = 5 * _MEGABYTE
#: Up to here it is simpler, and fewer calls, to read the object and write it again.
SMALL_OBJECT: Final = 4 * _SMALLEST_PART
#: Copies within S3 go at some 100 MB/s each, and many at once. A part is copied before its client gives up.
_COPIED_PART: Final = 64 * _MEGABYTE
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Composition:
    """An object of `before`, the `size` bytes of the object `source`, and `after`."""

    content_type: str
    before: bytes
    source: str
    size: int
    after: bytes


def compose(client: Any, bucket: str, key: str, wanted: Composition) -> None:
    """The object is complete, or it does not exist. Raises boto3's errors, and NoAnswer."""
    if wanted.size <= SMALL_OBJECT:
        middle = _read(client, wanted.size, Bucket=bucket, Key=wanted.source)
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
    """The first part is `before` and the source's beginning, because `before` alone may be too small."""
    source = {"Bucket": upload["Bucket"], "Key": wanted.source}
    rest = wanted.size - _SMALLEST_PART
    count = -(-rest // _COPIED_PART)
    edges = [_SMALLEST_PART + rest * index // count for index in range(count + 1)]  # None is too small.
    ranges = [f"bytes={first}-{behind - 1}" for first, behind in pairwise(edges)]
    head = _read(client, _SMALLEST_PART, **source, Range=f"bytes=0-{_SMALLEST_PART - 1}")

    def put(number: int, body: bytes) -> dict[str, Any]:
        reply = client.upload_part(**upload, PartNumber=number, Body=body)
        return {"PartNumber": number, "ETag": reply["ETag"]}

    def copy(numbered: tuple[int, str]) -> dict[str, Any]:
        number, byte_range = numbered
        copied = {"CopySource": source, "CopySourceRange": byte_range}
        reply = client.upload_part_copy(**upload, PartNumber=number, **copied)
        return {"PartNumber": number, "ETag": reply["CopyPartResult"]["ETag"]}

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        middle = pool.map(copy, enumerate(ranges, start=2))
        return [put(1, wanted.before + head), *middle, put(len(ranges) + 2, wanted.after)]


def _read(client: Any, size: int, **request: str) -> bytes:
    """Raises NoAnswer if the reply does not have `size` bytes."""
    data: bytes = client.get_object(**request)["Body"].read()
    if len(data) != size:
        raise NoAnswer(f"{request['Key']} has {len(data)} bytes in place of {size}")
    return data

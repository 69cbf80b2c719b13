"""The one seam to S3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from botocore import exceptions
from botocore.exceptions import ClientError

from tidemark.protocol.errors import Busy, Unavailable


def batch_blob_key(incarnation: str, append_id: str) -> str:
    """Under the incarnation, so that a reclaimed log takes its orphans along."""
    return f"{log_prefix(incarnation)}{append_id}"


def log_prefix(incarnation: str) -> str:
    return f"log/{incarnation}/"


class Blobs(Protocol):
    """Immutable objects by name."""

    def put(self, key: str, data: bytes) -> None: ...

    def get(self, key: str) -> bytes: ...

    def delete(self, key: str) -> None: ...

    def delete_prefix(self, prefix: str) -> None:
        """Remove every object whose name begins with `prefix`."""


class BlobStore:
    """Immutable objects in one bucket. The client is made when first needed: most appends
    and reads never do, and making it costs a cold start 80 ms."""

    def __init__(self, make_client: Callable[[], Any], bucket: str) -> None:
        self._make_client = make_client
        self._bucket = bucket
        self._made: Any = None

    @property
    def _client(self) -> Any:
        if self._made is None:
            self._made = self._make_client()
        return self._made

    def put(self, key: str, data: bytes) -> None:
        with _translated():
            self._client.put_object(Bucket=self._bucket, Key=key, Body=data)

    def get(self, key: str) -> bytes:
        with _translated():
            answer = self._client.get_object(Bucket=self._bucket, Key=key)
            data: bytes = answer["Body"].read()
        return data

    def delete(self, key: str) -> None:
        with _translated():
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def delete_prefix(self, prefix: str) -> None:
        """Remove every object whose key begins with `prefix`, 1,000 at a time."""
        with _translated():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            for page in pages:
                keys = [{"Key": found["Key"]} for found in page.get("Contents", [])]
                if keys:
                    self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True})


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ClientError as fault:
        status = fault.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if fault.response.get("Error", {}).get("Code") in {"SlowDown", "ThrottlingException"}:
            raise Busy from fault
        if status >= 500:
            raise Unavailable from fault
        raise
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as fault:
        raise Unavailable from fault

"""`python -m tidemark.ops.copy_table FROM TO`: copy a restored table into the empty one of a new stack.

Point-in-time recovery creates a table without a stack: it has no stream, no trigger and no janitor. A restore
is therefore a new stack, whose table gets the items of the restored one (docs/operations/restore.md).
`--objects` first copies the bucket as of that moment: objects removed since still exist as versions.
Endpoints, region and credentials are found as in boto3.

The order matters, because the new stack's janitor is already running: batches first, so that a stream is
whole when it becomes visible; due entries last, so that each finds its stream.

The writes have no condition. None may arrive after the janitor has begun to pack, end and remove due streams.
Due entries are therefore written only after the last possible arrival of an unanswered write, and a repeated
copy that has reached this point writes nothing else.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import IO, Any, Final

import orjson
from botocore.exceptions import BotoCoreError, ClientError

from tidemark.aws.clients import s3_client
from tidemark.aws.dynamodb import DynamoDB, Fault, connect_dynamodb
from tidemark.aws.http import Account
from tidemark.aws.retry import Failure, RetryPolicy, Silent
from tidemark.log.schema import FORMAT_EPOCH, FORMAT_KEY, PK, SK, Item, Key, decode_format
from tidemark.protocol.errors import FormatTooNew, OutcomeUnknown, StorageSilent, StorageUnavailable

#: The most items that one call writes.
_BATCH: Final = 25
_SEGMENTS: Final = 8
#: A new table takes 4,000 units a second and doubles that within half an hour; until then it throttles.
_PAUSE_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 30 * 60.0
#: Seconds between two lines about progress or retries.
_NEWS_SECONDS: Final = 5.0
#: AWS refuses a request that was signed longer ago, in seconds (docs/design.md, writes that land late).
_LATEST_ARRIVAL_SECONDS: Final = 15 * 60.0
#: An item in the target while due entries are written: everything else has been copied.
_STREAMS_ARE_THERE: Final[Key] = {PK: {"S": "copy"}, SK: {"S": "streams are there"}}


class CannotCopy(Exception):
    """The message states the reason."""


@dataclass(slots=True)
class DeferredItems:
    """Items to write later, kept on disk because there may be many."""

    _lines: IO[bytes]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0

    def keep(self, item: Item) -> None:
        with self._lock:
            self._lines.write(orjson.dumps(item) + b"\n")
            self.count += 1

    def all(self) -> Iterator[Item]:
        self._lines.seek(0)
        for line in self._lines:
            yield orjson.loads(line)


class Copy:
    """A copy of one table into another. A retryable call is retried for half an hour."""

    def __init__(self, dynamodb: DynamoDB, source: str, target: str) -> None:
        dynamodb.policy = RetryPolicy(
            math.inf, _PATIENCE_SECONDS, lambda _: _PAUSE_SECONDS, self._is_retryable
        )
        self._dynamodb = dynamodb
        self._source = source
        self._target = target
        self._lock = threading.Lock()
        self.report: Callable[[str], object] = lambda text: print(f"tidemark: {text}", file=sys.stderr)
        self.copied = 0
        self._reported_at = dynamodb.now()
        #: The latest time at which a write without a reply may have been sent.
        self._unanswered_at: float | None = None
        self._only_due = False

    def is_empty(self) -> bool:
        """Whether there are no items except the format's, which the functions of an unused stack write."""
        items = self._call("Scan", TableName=self._target, Limit=2)["Items"]
        return all(item["pk"] == FORMAT_KEY["pk"] for item in items)

    def check_format(self) -> None:
        """Raise CannotCopy for a later format, which the new stack would misread."""
        source = {"TableName": self._source, "Key": FORMAT_KEY, "ConsistentRead": True}
        least = decode_format(self._call("GetItem", **source).get("Item"))
        if least > FORMAT_EPOCH:
            raise CannotCopy(f"{self._source}: {FormatTooNew(least, FORMAT_EPOCH).message}")

    def run(self) -> int:
        """Copy, and return the number of items. Safe to repeat while only the janitor has used the target."""
        self.check_format()
        if not self.is_empty():  # Writes of an earlier copy may still arrive.
            self._unanswered_at = self._dynamodb.now()
            marker = {"TableName": self._target, "Key": _STREAMS_ARE_THERE, "ConsistentRead": True}
            self._only_due = "Item" in self._call("GetItem", **marker)
        with ExitStack() as files:
            streams, due = (DeferredItems(files.enter_context(tempfile.TemporaryFile())) for _ in range(2))
            with ThreadPoolExecutor(_SEGMENTS) as pool:
                list(pool.map(lambda segment: self.copy_segment(segment, streams, due), range(_SEGMENTS)))
            if not self._only_due:
                self._put_all(streams.all())
                self._wait_for_late_copies()
                self._call("PutItem", TableName=self._target, Item=_STREAMS_ARE_THERE)
            self._put_all(due.all())
            self._call("DeleteItem", TableName=self._target, Key=_STREAMS_ARE_THERE)
        return self.copied

    def _is_retryable(self, failure: Failure) -> bool:
        if not failure.outcome_known:
            self._unanswered_at = self._dynamodb.now()
        self._report_now_and_then(f"{failure}; trying again")
        return failure.retryable or isinstance(failure, Silent)

    def _report_now_and_then(self, text: str) -> None:
        if self._dynamodb.now() - self._reported_at > _NEWS_SECONDS:
            self._reported_at = self._dynamodb.now()
            self.report(text)

    def _wait_for_late_copies(self) -> None:
        if self._unanswered_at is None:
            return
        left_seconds = self._unanswered_at + _LATEST_ARRIVAL_SECONDS - self._dynamodb.now()
        if left_seconds > 0:
            self.report(
                "a write got no answer or a copy was cut off, and it may still land: the janitor's queue is "
                f"written in {left_seconds / 60:.0f} minutes"
            )
            self._dynamodb.sleep(left_seconds)

    def copy_segment(self, segment: int, streams: DeferredItems, due: DeferredItems) -> None:
        """Copy one segment of the table, and defer the items that must be written later. Waiters of the old
        stack are left out, and so is the format, because the new stack may be ahead."""

        def items_to_copy_now() -> Iterator[Item]:
            for item in self._scan(segment):
                kind = item["pk"]["S"].partition("/")[0]
                if kind == "due":
                    due.keep(item)
                elif self._only_due:
                    continue
                elif kind == "bucket":
                    streams.keep(item)
                elif kind not in {"wait", "format"}:
                    yield item

        self._put_all(items_to_copy_now())

    def _scan(self, segment: int) -> Iterator[Item]:
        start: dict[str, Any] = {}
        while True:
            page = self._call(
                "Scan", TableName=self._source, Segment=segment, TotalSegments=_SEGMENTS, **start
            )
            yield from page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def _put_all(self, items: Iterable[Item]) -> None:
        left = iter(items)
        while some := list(islice(left, _BATCH)):
            with _translated("BatchWriteItem"):
                self._dynamodb.write_batch(self._target, [{"PutRequest": {"Item": item}} for item in some])
            with self._lock:
                self.copied += len(some)
                self._report_now_and_then(f"{self.copied} items copied")

    def _call(self, operation: str, **arguments: Any) -> Any:
        with _translated(operation):
            return self._dynamodb.call(operation, arguments)


def copy_objects(s3: Any, source: str, target: str, moment: datetime) -> int:
    """Copy the objects that existed at that moment, from a bucket's versions; return their number. No key is
    written twice, so each has one version with data, and a marker if it was removed."""
    with ThreadPoolExecutor(_SEGMENTS) as pool:

        def copy(version: dict[str, Any]) -> None:
            origin = {"Bucket": source, "Key": version["Key"], "VersionId": version["VersionId"]}
            s3.copy_object(Bucket=target, Key=version["Key"], CopySource=origin)

        return sum(1 for _ in pool.map(copy, _objects_at(s3, source, moment)))


def _objects_at(s3: Any, bucket: str, moment: datetime) -> Iterator[dict[str, Any]]:
    second = moment.replace(microsecond=0)  # S3 has no fractions of a second.
    removed = {
        marker["Key"]
        for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket)
        for marker in page.get("DeleteMarkers", ())
        if marker["LastModified"] < second
    }
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
        for version in page.get("Versions", ()):
            if version["Key"] not in removed and version["LastModified"] <= moment:
                yield version


@contextmanager
def _translated(operation: str) -> Iterator[None]:
    try:
        yield
    except (Fault, StorageUnavailable, StorageSilent, OutcomeUnknown) as failure:
        raise CannotCopy(f"{operation}: {failure.__cause__ or failure}") from failure


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tidemark.ops.copy_table", description=__doc__)
    parser.add_argument("source", help="the restored table")
    parser.add_argument("target", help="the table of a new stack (its output TableName)")
    parser.add_argument("--again", action="store_true", help="go on with a copy that was cut off")
    parser.add_argument("--objects", nargs=2, metavar=("FROM", "TO"), help="buckets: copy the objects too")
    parser.add_argument(
        "--at", type=datetime.fromisoformat, help="the moment of the restored table (ISO 8601)"
    )
    options = parser.parse_args(arguments)
    if (options.objects is None) != (options.at is None):
        parser.error("--objects and --at go together")
    try:
        copy = Copy(connect_dynamodb(Account()), options.source, options.target)
        if not options.again and not copy.is_empty():  # The copy would overwrite its items.
            raise CannotCopy(f"{options.target} is not empty; copy into the table of a new stack")
        if options.objects:
            bucket, new_bucket = options.objects
            at = options.at if options.at.tzinfo else options.at.replace(tzinfo=UTC)
            copied = copy_objects(s3_client(), bucket, new_bucket, at)
            print(f"{copied} objects copied from {bucket} to {new_bucket}")
        copy.run()
        print(f"{copy.copied} items copied from {options.source} to {options.target}")
    # OSError: there are no credentials. BotoCoreError and ClientError come from S3.
    except (CannotCopy, OSError, BotoCoreError, ClientError) as reason:
        print(f"tidemark: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

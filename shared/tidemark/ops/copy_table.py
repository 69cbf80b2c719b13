"""`python -m tidemark.ops.copy_table FROM TO`: a restored table into the empty one of a new stack.

Point-in-time recovery makes a table that no stack knows: without a stream, a trigger or anybody
who cleans up. So a restore is a new stack, whose table gets the items of the restored one
(docs/operations/restore.md). `--objects` first copies the bucket as it was at that moment: what has been
removed since is still there as a version. Endpoints, region and credentials are found as boto3 finds them.

The order matters, because the new stack's janitor is at work already: batches first, so that a
stream is whole when it is seen; what is due last, so that an entry finds its stream.

The writes have no condition. So none of them may land once the janitor has begun, which packs, ends and
removes what it finds due: what is due is written only after the last copy of a write without an answer can
have arrived, and a repeated copy writes nothing else once that was reached.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import IO, Any, Final

import orjson
from botocore.exceptions import BotoCoreError, ClientError

from tidemark.aws.clients import s3_client
from tidemark.aws.dynamodb import DynamoDB, Fault, connect_dynamodb
from tidemark.aws.http import Account
from tidemark.aws.retry import Failure, patient_policy
from tidemark.log.schema import FORMAT_EPOCH, FORMAT_KEY, PK, SK, Item, Key, decode_format
from tidemark.protocol.errors import FormatTooNew, OutcomeUnknown, StorageSilent, StorageUnavailable

#: The most items that one call writes.
_BATCH: Final = 25
_SEGMENTS: Final = 8
#: A new table takes 4,000 units a second and doubles that within half an hour: it throttles meanwhile.
_PAUSE_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 30 * 60.0
#: Between two lines about how far the copy is, or about calls that are sent again.
_NEWS_SECONDS: Final = 5.0
#: AWS refuses a request that was signed longer ago (docs/design.md, writes that land late).
_LATEST_ARRIVAL_SECONDS: Final = 15 * 60.0
#: In the target while what is due is being written: all else is there.
_STREAMS_ARE_THERE: Final[Key] = {PK: {"S": "copy"}, SK: {"S": "streams are there"}}


class CannotCopy(Exception):
    """The message says why."""


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
    """A copy of one table into another. A call that may succeed later is retried for half an hour."""

    def __init__(self, dynamodb: DynamoDB, source: str, target: str) -> None:
        self._policy = patient_policy(_PAUSE_SECONDS, _PATIENCE_SECONDS)
        dynamodb.policy = replace(self._policy, retryable=self._is_retryable)
        self._dynamodb = dynamodb
        self._source = source
        self._target = target
        self._lock = threading.Lock()
        self.say: Callable[[str], object] = lambda text: print(f"tidemark: {text}", file=sys.stderr)
        self.copied = 0
        self._said_at = dynamodb.now()
        #: The latest time at which a write may have been sent that got no reply.
        self._unanswered_at: float | None = None
        self._only_due = False

    def check_empty(self) -> None:
        """Raises CannotCopy: over the items of a stack that is in use, a copy would destroy them."""
        if not self._is_empty():
            raise CannotCopy(f"{self._target} is not empty; copy into the table of a new stack")

    def _is_empty(self) -> bool:
        """An unused stack already has the format's item, which its functions write."""
        items = self._call("Scan", TableName=self._target, Limit=2)["Items"]
        return all(item["pk"] == FORMAT_KEY["pk"] for item in items)

    def check_format(self) -> None:
        """Raises CannotCopy: the new stack would serve a later format as data."""
        source = {"TableName": self._source, "Key": FORMAT_KEY, "ConsistentRead": True}
        least = decode_format(self._call("GetItem", **source).get("Item"))
        if least > FORMAT_EPOCH:
            raise CannotCopy(f"{self._source}: {FormatTooNew(least, FORMAT_EPOCH).message}")

    def run(self) -> int:
        """The number of items. Safe to repeat as long as nobody but the janitor has used the target."""
        self.check_format()
        if not self._is_empty():  # Writes of an earlier copy may still land.
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
        self._say_news(f"{failure}; trying again")
        return self._policy.retryable(failure)

    def _say_news(self, text: str) -> None:
        if self._dynamodb.now() - self._said_at > _NEWS_SECONDS:
            self._said_at = self._dynamodb.now()
            self.say(text)

    def _wait_for_late_copies(self) -> None:
        if self._unanswered_at is None:
            return
        left_seconds = self._unanswered_at + _LATEST_ARRIVAL_SECONDS - self._dynamodb.now()
        if left_seconds > 0:
            self.say(
                "a write got no answer or a copy was cut off, and it may still land: the janitor's queue is "
                f"written in {left_seconds / 60:.0f} minutes"
            )
            self._dynamodb.sleep(left_seconds)

    def copy_segment(self, segment: int, streams: DeferredItems, due: DeferredItems) -> None:
        """Copies a part of the table, but for what must be written later. Waiting readers are left out: they
        waited on the old stack. So is the format: the new stack may be ahead."""

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
                self._say_news(f"{self.copied} items copied")

    def _call(self, operation: str, **arguments: Any) -> Any:
        with _translated(operation):
            return self._dynamodb.call(operation, arguments)


def copy_objects(s3: Any, source: str, target: str, moment: datetime) -> int:
    """Copy the objects that existed at that moment, from the versions of a bucket; returns how many. No key
    is written twice, so each has one version with data, and a marker if it was removed."""
    with ThreadPoolExecutor(_SEGMENTS) as pool:

        def copy(version: dict[str, Any]) -> None:
            origin = {"Bucket": source, "Key": version["Key"], "VersionId": version["VersionId"]}
            s3.copy_object(Bucket=target, Key=version["Key"], CopySource=origin)

        return sum(1 for _ in pool.map(copy, _objects_at(s3, source, moment)))


def _objects_at(s3: Any, bucket: str, moment: datetime) -> Iterator[dict[str, Any]]:
    second = moment.replace(microsecond=0)  # S3 says no fractions.
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


def _moment(text: str) -> datetime:
    """Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


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
    parser.add_argument("--at", type=_moment, help="the moment that the table was restored to (ISO 8601)")
    options = parser.parse_args(arguments)
    if (options.objects is None) != (options.at is None):
        parser.error("--objects and --at go together")
    try:
        copy = Copy(connect_dynamodb(Account()), options.source, options.target)
        if not options.again:
            copy.check_empty()
        if options.objects:
            bucket, new_bucket = options.objects
            copied = copy_objects(s3_client(), bucket, new_bucket, options.at)
            print(f"{copied} objects copied from {bucket} to {new_bucket}")
        copy.run()
        print(f"{copy.copied} items copied from {options.source} to {options.target}")
    # RuntimeError: there are no credentials. The others come from the buckets.
    except (CannotCopy, RuntimeError, BotoCoreError, ClientError) as reason:
        print(f"tidemark: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tidemark.ops.copy_table FROM TO`: a restored table into the empty one of a new stack.

Point-in-time recovery makes a table that no stack knows: without a stream, a trigger or anybody
who cleans up. So a restore is a new stack, whose table gets the items of the restored one
(docs/operations.md). Endpoints, region and credentials are found as boto3 finds them.

The order matters, because the new stack's janitor is at work already: batches first, so that a
stream is whole when it is seen; what is due last, so that an entry finds its stream.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, Any, Final

import orjson

from tidemark.aws.account import Account
from tidemark.aws.dynamodb import DynamoDB, Fault, connect_dynamodb
from tidemark.aws.retry import patient_policy
from tidemark.log.schema import Item
from tidemark.ops.progress import progress_bar
from tidemark.protocol.errors import OutcomeUnknown, StorageSilent, StorageUnavailable

#: What one call writes at most.
_BATCH: Final = 25
_SEGMENTS: Final = 8
#: A new table takes 4,000 units a second and doubles that within half an hour: it throttles meanwhile.
_PAUSE_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 30 * 60.0


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
    """Of one table into another. A call that may succeed later is sent again for half an hour."""

    def __init__(self, dynamodb: DynamoDB, source: str, target: str) -> None:
        dynamodb.policy = patient_policy(_PAUSE_SECONDS, _PATIENCE_SECONDS)
        self._dynamodb = dynamodb
        self._source = source
        self._target = target
        self._lock = threading.Lock()
        #: Called with how many items more are written, by one thread at a time.
        self.on_written: Callable[[int], object] = lambda _: None
        self.copied = 0

    def estimate(self) -> int:
        """How many items the source has, as DynamoDB counts them every six hours; 0 where it does not say."""
        try:
            return int(self._call("DescribeTable", TableName=self._source)["Table"]["ItemCount"])
        except CannotCopy:
            return 0

    def check_empty(self) -> None:
        """Raises CannotCopy: over the items of a stack that is in use, a copy would destroy them."""
        if self._call("Scan", TableName=self._target, Limit=1)["Items"]:
            raise CannotCopy(f"{self._target} is not empty; copy into the table of a new stack")

    def run(self) -> int:
        """The number of items. Safe to repeat as long as nobody has used the target."""
        with ExitStack() as files:
            streams, due = (DeferredItems(files.enter_context(tempfile.TemporaryFile())) for _ in range(2))
            with ThreadPoolExecutor(_SEGMENTS) as pool:
                list(pool.map(lambda segment: self.copy_segment(segment, streams, due), range(_SEGMENTS)))
            self._put_all(streams.all())
            self._put_all(due.all())
        return self.copied

    def copy_segment(self, segment: int, streams: DeferredItems, due: DeferredItems) -> None:
        """Copies a part of the table, but for what must be written later. Waiting readers are left out: they
        waited on the old stack."""

        def items_to_copy_now() -> Iterator[Item]:
            for item in self._scan(segment):
                kind = item["pk"]["S"].partition("/")[0]
                if kind == "bucket":
                    streams.keep(item)
                elif kind == "due":
                    due.keep(item)
                elif kind != "wait":
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
                self.on_written(len(some))

    def _call(self, operation: str, **arguments: Any) -> Any:
        with _translated(operation):
            return self._dynamodb.call(operation, arguments)


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
    options = parser.parse_args(arguments)
    copy = Copy(connect_dynamodb(Account()), options.source, options.target)
    try:
        if not options.again:
            copy.check_empty()
        with progress_bar(copy.estimate(), "items, about") as bar:
            copy.on_written = bar.update
            copy.run()
        print(f"{copy.copied} items copied from {options.source} to {options.target}")
    except CannotCopy as reason:
        print(f"tidemark: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

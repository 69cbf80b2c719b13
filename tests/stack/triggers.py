"""Calls the functions that HTTP does not reach, as AWS does: for changes of the table, messages of the queue,
and on schedule."""

import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any, Final

from tests.stack.environments import Environments, InvocationFailed
from tests.stack.events import schedule_event
from tests.stack.template import Function, Trigger
from tidemark.aws.sqs import MAX_RECEIVE_SECONDS, receiving_client
from tidemark.server.request_log import report


def matches(wanted: Any, value: Any) -> bool:
    """Whether an event has every key of a pattern, with a value that its list allows: literals and prefixes,
    which are all that the template has."""
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and all(
            key in value and matches(each, value[key]) for key, each in wanted.items()
        )
    return any(_allows(each, value) for each in wanted)


def _allows(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(value, str) and value.startswith(wanted["prefix"])
    return bool(wanted == value)


_RETRY_SECONDS: Final = 0.2

Record = dict[str, Any]


class _Caller:
    """A thread that calls a function, from `start` to `stop`. Raises FunctionNotLoaded when it is made."""

    def __init__(self, function: Function) -> None:
        self._environments = Environments(function)
        self._stopped = threading.Event()
        name = f"{type(self).__name__} of {function.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for running calls: they may be cut off anywhere, as in Lambda."""
        self._stopped.set()
        self._environments.close()

    def _run(self) -> None:
        raise NotImplementedError


class Pump(_Caller):
    """Calls the function of a table's stream."""

    def __init__(self, trigger: Trigger, function: Function, table_name: str) -> None:
        super().__init__(function)
        self._trigger = trigger
        self._table_name = table_name
        self._records: SimpleQueue[Record | None] = SimpleQueue()

    def tell(self, table_name: str, record: Record) -> None:
        """Called after each change of a table, from any thread."""
        patterns = self._trigger.patterns
        is_wanted = not patterns or any(matches(pattern, record) for pattern in patterns)
        if table_name == self._table_name and is_wanted:
            self._records.put(record)

    def stop(self) -> None:
        super().stop()
        self._records.put(None)

    def _run(self) -> None:
        while not self._stopped.is_set():
            batch = list(self._batch())
            try:
                self._deliver(batch)
            except Exception as error:  # noqa: BLE001 - readers wait for this thread: it must not end
                report(f"{len(batch)} records of the table's stream are lost: {error!r}")

    def _batch(self) -> Iterator[Record]:
        """The records that wait. Blocks until there is one."""
        record = self._records.get()
        for number in range(self._trigger.batch_size):
            try:
                record = self._records.get_nowait() if number else record
            except Empty:
                return
            if record is None:
                return
            yield record

    def _deliver(self, records: list[Record]) -> None:
        """Delivers the first failed record and those after it again, as often as the template allows."""
        for _ in range(self._trigger.retries + 1):
            if records:
                records = self._invoke(records)
            if not records or self._stopped.wait(_RETRY_SECONDS):
                return
        report(f"{len(records)} stream records were given up")

    def _invoke(self, records: list[Record]) -> list[Record]:
        """Returns the records to deliver again: Lambda resumes at the first that is reported as failed."""
        try:
            return from_first_failure(records, self._environments.call({"Records": records}))
        except InvocationFailed:
            return records


def from_first_failure(records: list[Record], report: Any) -> list[Record]:
    """The records from the first one on that `report`, the function's response, names as failed."""
    failures = (report or {}).get("batchItemFailures") or []
    failed = {failure.get("itemIdentifier") for failure in failures}
    if not failed:
        return []
    numbers = [record["dynamodb"]["SequenceNumber"] for record in records]
    first = next((index for index, number in enumerate(numbers) if number in failed), 0)
    # An identifier that is not in the batch fails it whole.
    return records[first:]


TROUBLE_SECONDS: Final = 1.0
#: So many batches run at once, as in the template (MaximumConcurrency): a slow webhook delays one of them.
BATCHES: Final = 100


class QueuePump(_Caller):
    """Calls the function that works off a queue."""

    def __init__(self, function: Function, queue_url: str, batch_size: int) -> None:
        super().__init__(function)
        self._queue_url = queue_url
        self._batch_size = batch_size
        self._sqs = receiving_client()
        self._free = threading.Semaphore(BATCHES)
        self._pool = ThreadPoolExecutor(BATCHES, thread_name_prefix="subscriptions")

    def stop(self) -> None:
        super().stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while not self._stopped.is_set():
            with self._free:
                pass  # Wait until a batch can be taken, and leave the messages to the queue until then.
            try:
                messages = self._receive()
            except Exception as error:  # noqa: BLE001 - wakes depend on this thread: it must not end
                if not self._stopped.is_set():
                    report(f"the subscriptions' queue cannot be read: {error!r}")
                self._stopped.wait(TROUBLE_SECONDS)
                continue
            if messages and not self._stopped.is_set():
                self._free.acquire()
                self._pool.submit(self._deliver, messages)

    def _receive(self) -> list[dict[str, Any]]:
        reply = self._sqs.receive_message(
            QueueUrl=self._queue_url,
            MaxNumberOfMessages=self._batch_size,
            WaitTimeSeconds=MAX_RECEIVE_SECONDS,
        )
        found: list[dict[str, Any]] = reply.get("Messages", [])
        return found

    def _deliver(self, messages: list[dict[str, Any]]) -> None:
        try:
            failed = self._invoke(messages)
            for message in messages:
                if message["MessageId"] not in failed:
                    self._sqs.delete_message(QueueUrl=self._queue_url, ReceiptHandle=message["ReceiptHandle"])
        except Exception as error:  # noqa: BLE001 - the messages come again
            if not self._stopped.is_set():
                report(f"messages of subscriptions come again: {error!r}")
        finally:
            self._free.release()

    def _invoke(self, messages: list[dict[str, Any]]) -> set[str]:
        """Returns the ids of the messages to deliver again."""
        records = [
            {"messageId": message["MessageId"], "body": message["Body"], "eventSource": "aws:sqs"}
            for message in messages
        ]
        try:
            answer = self._environments.call({"Records": records})
        except InvocationFailed as failure:
            report(f"the function of subscriptions failed: {failure}")
            return {message["MessageId"] for message in messages}
        return {failure["itemIdentifier"] for failure in (answer or {}).get("batchItemFailures", ())}


class ScheduledFunction(_Caller):
    """Called every `interval_seconds`, for the first time after the first interval. A failure is printed; the
    next round tries again."""

    def __init__(self, function: Function, interval_seconds: float) -> None:
        super().__init__(function)
        self._rule = function.name
        self._interval_seconds = interval_seconds

    def _run(self) -> None:
        region = os.environ.get("AWS_REGION", "us-east-1")
        while not self._stopped.wait(self._interval_seconds):
            event = schedule_event(self._rule, region, datetime.now(UTC))
            with suppress(InvocationFailed):
                self._environments.call(event)

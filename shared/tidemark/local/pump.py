"""The pump: hands the table's changes to the function that the template says they call, as Lambda does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any, Final

from tidemark.local.environments import Environments, InvocationFailed, Throttled
from tidemark.local.patterns import matches
from tidemark.local.template import Function, Trigger
from tidemark.server.standard_error import report

RETRY_SECONDS: Final = 0.2

Record = dict[str, Any]


class Pump:
    """A thread, from `start` to `stop`. Raises FunctionNotLoaded when it is made."""

    def __init__(self, trigger: Trigger, function: Function, table_name: str) -> None:
        self._trigger = trigger
        self._table_name = table_name
        # One works at a time; one that has just finished may not be idle yet.
        self._environments = Environments(function, limit=2)
        self._records: SimpleQueue[Record | None] = SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"pump of {function.name}", daemon=True)

    def tell(self, table_name: str, record: Record) -> None:
        """Called after each change of a table, from any thread."""
        patterns = self._trigger.patterns
        is_wanted = not patterns or any(matches(pattern, record) for pattern in patterns)
        if table_name == self._table_name and is_wanted:
            self._records.put(record)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for what is running: it may be cut off anywhere, as in Lambda."""
        self._stopped.set()
        self._records.put(None)
        self._environments.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            batch = list(self._batch())
            try:
                self._deliver(batch)
            except Exception as error:  # noqa: BLE001 - readers wait for this thread: it must not end
                report(f"{len(batch)} records of the table's stream are lost: {error!r}")

    def _batch(self) -> Iterator[Record]:
        """The records that wait, one at least."""
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
        """From the first that failed on, records are delivered again, as often as the template allows."""
        for _ in range(self._trigger.retries + 1):
            if records:
                records = self._invoke(records)
            if not records or self._stopped.wait(RETRY_SECONDS):
                return
        report(f"{len(records)} stream records were given up")

    def _invoke(self, records: list[Record]) -> list[Record]:
        """Returns the records to deliver again: Lambda goes on from the first that is reported as failed."""
        event = json.dumps({"Records": records}, separators=(",", ":")).encode()
        try:
            report = json.loads(self._environments.invoke(event).result())
        except (InvocationFailed, Throttled):
            return records
        return from_first_failure(records, report)


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

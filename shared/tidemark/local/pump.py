"""The pump: hands the table's stream records to the function that the template says they call.

It does what Lambda does, but Lambda asks each shard for records four times a second. Here it is asked as soon
as a request of this server may have written, so that the local system wakes readers faster than the deployed
one; and hardly ever while there are none, so that an idle server takes no processor time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tidemark.local.environments import Environments, InvocationFailed, Throttled
from tidemark.local.patterns import matches
from tidemark.local.records import Record, StreamRecords
from tidemark.local.template import Function, Trigger
from tidemark.local.write_signal import WriteSignal
from tidemark.server.standard_error import report

#: How long between two readings, right after records came, grows to the idle pace by this.
SLOWING: Final = 1.1
RETRY_SECONDS: Final = 0.2
TROUBLE_SECONDS: Final = 1.0
#: How often a pump that nobody wants looks whether that has changed.
UNWANTED_SECONDS: Final = 0.25
#: Without a request that may have written: other processes can write to the table too.
QUIET_SECONDS: Final = 2.0
#: How long it stays wanted: between two long-polls of one reader nobody waits.
LINGER_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class PollingDemand:
    """Who the pump works for, and how eagerly: the seconds between two readings of the stream, as long as
    records come and when none do.

    While nobody wants them, the stream is not read. Then it is read from the present on, and `on_positioned`
    is called once the present is fixed: readers that began to wait before it must read again.
    """

    busy_seconds: float = 0.01
    idle_seconds: float = 0.1
    is_wanted: Callable[[], bool] = lambda: True
    on_positioned: Callable[[], None] = lambda: None
    #: Given when there may be records: the stream is read at once, and as while records come.
    signal: WriteSignal = field(default_factory=WriteSignal)

    def pause_after(self, pause: float, *, is_busy: bool) -> float:
        """The seconds until the next reading, which followed the one before after `pause`."""
        return self.busy_seconds if is_busy else min(pause * SLOWING, self.idle_seconds)


def by_trigger_alone(signal: WriteSignal) -> PollingDemand:
    """The trigger alone wakes readers: at once after a request of this server."""
    return PollingDemand(idle_seconds=QUIET_SECONDS, signal=signal)


class Pump:
    """A thread, from `start` to `stop`. Raises FunctionNotLoaded when it is made."""

    def __init__(self, trigger: Trigger, function: Function, table_name: str, demand: PollingDemand) -> None:
        self._trigger = trigger
        self._table_name = table_name
        self._demand = demand
        # One works at a time; one that has just finished may not be idle yet.
        self._environments = Environments(function, limit=2)
        self._stopped = threading.Event()
        #: Set while records are read.
        self.following = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"pump of {function.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for what is running: it may be cut off anywhere, as in Lambda."""
        self._stopped.set()
        self._demand.signal.give()
        self._environments.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            if not self._demand.is_wanted():
                self._stopped.wait(UNWANTED_SECONDS)
                continue
            try:
                self._follow()
            except Exception as error:  # noqa: BLE001 - readers wait for this thread: it must not end
                if not self._stopped.is_set():
                    report(f"the table's stream cannot be read: {error!r}; trying again")
                self._stopped.wait(TROUBLE_SECONDS)
            finally:
                self.following.clear()

    def _follow(self) -> None:
        """From the present on, for as long as somebody wants it."""
        records = StreamRecords(self._table_name)
        patterns, size = self._trigger.patterns, self._trigger.batch_size
        self._demand.on_positioned()
        self.following.set()
        pause, wanted_at, seen = self._demand.busy_seconds, time.monotonic(), self._demand.signal.count
        while not self._stopped.is_set() and time.monotonic() - wanted_at < LINGER_SECONDS:
            if self._demand.is_wanted():
                wanted_at = time.monotonic()
            found = records.read()
            if patterns:
                found = [record for record in found if any(matches(pattern, record) for pattern in patterns)]
            for start in range(0, len(found), size):
                self._deliver(found[start : start + size])
            pause = self._demand.pause_after(pause, is_busy=bool(found))
            given = self._demand.signal.wait(seen, pause)
            if given != seen:
                pause, seen = self._demand.pause_after(pause, is_busy=True), given

    def _deliver(self, records: list[Record]) -> None:
        """From the first that failed on, records are delivered again, as often as the template allows."""
        for _ in range(self._trigger.retries + 1):
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

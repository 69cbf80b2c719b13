"""Work that comes round: the scheduled functions, called as EventBridge would, and housekeeping."""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from tidemark.local.environments import Environments, InvocationFailed
from tidemark.local.events import schedule_event
from tidemark.local.template import Function
from tidemark.server.standard_error import report_failure


class PeriodicTask(ABC):
    """Comes every `interval_seconds` in a thread of its own, for the first time after the first interval."""

    def __init__(self, name: str, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for what is running: it may be cut off anywhere, as in Lambda."""
        self._stopped.set()

    @abstractmethod
    def once(self) -> None:
        """Must raise nothing."""

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_seconds):
            self.once()


class ScheduledFunction(PeriodicTask):
    """A failure is printed; the next round tries again. Raises FunctionNotLoaded when it is made."""

    def __init__(self, function: Function, interval_seconds: float) -> None:
        super().__init__(f"schedule of {function.name}", interval_seconds)
        self._rule = function.name
        self._environments = Environments(function, limit=1)

    def once(self) -> None:
        region = os.environ.get("AWS_REGION", "us-east-1")
        event = schedule_event(self._rule, region, datetime.now(UTC))
        with suppress(InvocationFailed):
            self._environments.invoke(json.dumps(event).encode()).result()

    def stop(self) -> None:
        super().stop()
        self._environments.close()


class StreamRecordTrimming(PeriodicTask):
    """Removes stream records that AWS would have dropped; `trim` takes the oldest time to keep."""

    def __init__(
        self, trim: Callable[[float], int], retention_seconds: float, interval_seconds: float
    ) -> None:
        super().__init__("trimming of stream records", interval_seconds)
        self._trim = trim
        self._retention_seconds = retention_seconds

    def once(self) -> None:
        try:
            self._trim(datetime.now(UTC).timestamp() - self._retention_seconds)
        except Exception as error:  # noqa: BLE001 - housekeeping must not end its thread
            if not self._stopped.is_set():
                report_failure(error)

"""The scheduled functions, called as EventBridge would."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from datetime import UTC, datetime

from tidemark.local.environments import Environments, InvocationFailed
from tidemark.local.events import schedule_event
from tidemark.local.template import Function


class ScheduledFunction:
    """Called every `interval_seconds`, for the first time after the first interval. A failure is printed; the
    next round tries again. Raises FunctionNotLoaded when it is made."""

    def __init__(self, function: Function, interval_seconds: float) -> None:
        self._rule = function.name
        self._interval_seconds = interval_seconds
        self._environments = Environments(function, limit=1)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"schedule of {function.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for what is running: it may be cut off anywhere, as in Lambda."""
        self._stopped.set()
        self._environments.close()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_seconds):
            self._call()

    def _call(self) -> None:
        region = os.environ.get("AWS_REGION", "us-east-1")
        event = schedule_event(self._rule, region, datetime.now(UTC))
        with suppress(InvocationFailed):
            self._environments.invoke(json.dumps(event).encode()).result()

"""A process's side of waking: its hub, its queue and its registrations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from tidemark.aws.sqs import MAX_RECEIVE_SECONDS, Queues, QueueUnavailable
from tidemark.log.table import Table
from tidemark.protocol.errors import ProtocolError
from tidemark.wake.hub import Hub
from tidemark.wake.receiver import Receiver
from tidemark.wake.registry import Registry

#: How often a reader polls the log: until a new queue is known everywhere, and as long as no queue
#: can be had.
NEW_QUEUE_POLL_SECONDS: Final = 0.1
NO_QUEUE_POLL_SECONDS: Final = 1.0
#: Added to the length of a receive: a reader that nothing has woken for longer polls the log by itself,
#: whatever has become of the thread that should have woken it.
_OVERDUE_SECONDS: Final = 4.0


class Wake(Protocol):
    """Makes appends wake the readers of this process. Safe to share between threads and event loops."""

    hub: Hub

    def ensure_subscribed(self, incarnation: str) -> float:
        """On return, every append to the stream wakes its listeners, whichever process makes it.
        Read the log after this, then wait, and poll again after the seconds returned at the latest.

        Raises Busy or OutcomeUnknown; a missing queue is not an error.
        """

    def close(self) -> None:
        """The process ends: leave nothing behind."""


class WakeByHub:
    """Waking in the only process that writes: each commit tells its hub."""

    def __init__(self) -> None:
        self.hub = Hub()

    def ensure_subscribed(self, _incarnation: str) -> float:
        return MAX_RECEIVE_SECONDS

    def close(self) -> None:
        pass


class WakeByQueue:
    """Other processes write too: the notifier tells of their appends by this process's queue."""

    def __init__(
        self,
        table: Table,
        queues: Queues,
        clock_ms: Callable[[], int],
        receive_seconds: int = MAX_RECEIVE_SECONDS,
    ) -> None:
        self.hub = Hub()
        self._registry = Registry(table, clock_ms)
        self._receiver = Receiver(self.hub, queues, clock_ms, receive_seconds)
        self._poll_seconds = receive_seconds + _OVERDUE_SECONDS

    def ensure_subscribed(self, incarnation: str) -> float:
        self._receiver.ensure_running()
        try:
            queue = self._receiver.queue()
        except QueueUnavailable:
            return NO_QUEUE_POLL_SECONDS
        self._registry.ensure(incarnation, queue.url)
        return NEW_QUEUE_POLL_SECONDS if queue.settling_seconds else self._poll_seconds

    def close(self) -> None:
        """Leaves neither queue nor registrations behind."""
        self._receiver.close()
        with suppress(ProtocolError):
            self._registry.withdraw()

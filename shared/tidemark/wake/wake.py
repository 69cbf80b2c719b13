"""What makes a process one that is woken: its hub, its queue and its registrations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tidemark.aws.sqs import MAX_RECEIVE_SECONDS, Queues, QueueUnavailable
from tidemark.log.table import Table
from tidemark.protocol.errors import ProtocolError
from tidemark.wake.hub import Hub
from tidemark.wake.receiver import Receiver
from tidemark.wake.registry import Registry

#: How often a reader looks for itself: until a new queue is heard of everywhere, and as long
#: as there is none to be had.
LOOK_SECONDS: Final = 0.1
DEAF_SECONDS: Final = 1.0
#: Added to the length of a receive: a reader that nothing has rung for longer looks for itself,
#: whatever has become of the thread that should have rung.
_OVERDUE_SECONDS: Final = 4.0


class Wake:
    """Safe to share between threads and event loops."""

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
        self._patience_seconds = receive_seconds + _OVERDUE_SECONDS

    def expect(self, incarnation: str) -> float:
        """On return, what is appended to the stream rings its bells, this process's or any
        other's. Read after this, then wait: for no longer than the seconds returned.

        Raises Busy or OutcomeUnknown; a queue that is not to be had is no reason to fail.
        """
        self._receiver.attend()
        try:
            queue = self._receiver.queue()
        except QueueUnavailable:
            return DEAF_SECONDS
        self._registry.ensure(incarnation, queue.url)
        return LOOK_SECONDS if queue.settling_seconds else self._patience_seconds

    def close(self) -> None:
        """The process ends: leave neither queue nor registrations behind."""
        self._receiver.close()
        with suppress(ProtocolError):
            self._registry.withdraw()

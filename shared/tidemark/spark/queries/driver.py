"""A streaming query's look at its streams: which there are, where they end, and whether to wait for more."""

from __future__ import annotations

import time
from collections.abc import Callable

from tidemark.spark.options.read import ReadOptions
from tidemark.spark.progress import Look, Positions, Progress
from tidemark.spark.queries.plan import backlog_of, load_heads, positions_of, require_all
from tidemark.spark.readers.connect import connect
from tidemark.spark.readers.port import Reader

#: An idle query is asked for its latest offset every 10 ms; the streams are asked once a second.
LOOK_SECONDS = 1.0


class Driver:
    """A connected reader, and the streams as they were up to a second ago."""

    def __init__(
        self,
        options: ReadOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self._clock = clock
        self._looked = float("-inf")
        self._let_go = float("-inf")
        self._last_look = Look({}, 0)
        self._connected: Reader | None = None

    @property
    def reader(self) -> Reader:
        if self._connected is None:
            self._connected = connect(self.options.connection)
        return self._connected

    def initial(self) -> Progress:
        heads = self.look(fresh=True).heads
        require_all(self.options, self.reader, heads)
        return Progress(positions_of("starting", self.options, self.reader, heads))

    def look(self, *, fresh: bool = False) -> Look:
        if fresh or self._clock() - self._looked >= LOOK_SECONDS:
            began = self._clock()
            heads = load_heads(self.options, self.reader)
            self._looked = self._clock()
            # By the clock that wrote when the streams were created; it is known once the server has answered.
            at_ms = self.reader.now_ms() - round(1000 * (self._looked - began))
            self._last_look = Look(heads, max(0, at_ms))
        return self._last_look

    def waits(self, starts: Positions, ends: Positions) -> bool:
        """Whether too little has come for a batch, and the last one was not so long ago. The first batch
        after a start does not wait."""
        if self.options.least_bytes is None:
            return False
        size, now = backlog_of(self.options, self.reader, starts, ends), self._clock()
        is_enough = size >= self.options.least_bytes
        if size and (is_enough or now - self._let_go >= self.options.delay_seconds):
            self._let_go = now
            return False
        return True

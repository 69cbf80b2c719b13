"""Puts that share one write of a local engine.

dynoxide carries out one write at a time and syncs the disk for each, transactions of many items like single
puts. So a put that finds another one under way waits, and all that wait go together in the next transaction.
On AWS that would gain nothing and cost twice as much; it is for a local engine alone.

Each put keeps its own condition and its own answer. A transaction that is refused has changed nothing: puts
whose condition failed in it are told so, and each of the others is sent again by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidemark.aws.dynamodb import DynamoDB, Fault
from tidemark.local.on_loop.greenlets import await_only, greenlet_spawn
from tidemark.log.dynamodb import DynamoDBTable
from tidemark.log.schema import PK, SK, Item
from tidemark.log.table import Condition, ConditionFailed, TransactionRefused, Write

#: DynamoDB's limits of a transaction are 100 items and 4 MB.
MAX_PUTS: Final = 64
MAX_CHARACTERS: Final = 3_000_000


class _Alone(Exception):
    """The transaction was refused for another put: this one is sent by itself. `maybe_landed` as in
    ConditionFailed."""

    def __init__(self, *, maybe_landed: bool) -> None:
        super().__init__("the put is to be sent by itself")
        self.maybe_landed = maybe_landed


@dataclass(slots=True, eq=False)
class _Put:
    item: Item
    condition: Condition | None
    done: asyncio.Future[None]

    def settle(self, failure: Exception | None = None) -> None:
        if self.done.done():  # Its request was cancelled.
            return
        if failure is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(failure)


class GroupingTable(DynamoDBTable):
    """Used from one event loop, by functions that `greenlet_spawn` runs."""

    def __init__(self, dynamodb: DynamoDB, name: str) -> None:
        super().__init__(dynamodb, name)
        self._waiting: deque[_Put] = deque()
        self._is_writing = False
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, item: Item, condition: Condition | None = None) -> None:
        """Raises as `Table.put`."""
        if not self._is_writing:
            self._is_writing = True
            try:
                super().put(item, condition)
            finally:
                self._write_what_waits()
            return
        waiting = _Put(item, condition, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            await_only(waiting.done)
        except _Alone as group:
            try:
                super().put(item, condition)
            except ConditionFailed as refused:
                refused.maybe_landed = refused.maybe_landed or group.maybe_landed
                raise

    def _write_what_waits(self) -> None:
        """In a task of its own, which no cancelled request takes along."""
        group = self._take_group()
        self._is_writing = bool(group)
        if group:
            task = asyncio.create_task(greenlet_spawn(partial(self._write, group)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _take_group(self) -> list[_Put]:
        """Those that waited longest, as many as fit a transaction; it takes no two puts of one item."""
        group: list[_Put] = []
        keys: set[tuple[str, str]] = set()
        characters = 0
        while self._waiting and len(group) < MAX_PUTS:
            put = self._waiting[0]
            key = (put.item[PK]["S"], put.item[SK]["S"])
            characters += _characters(put.item)
            if group and (key in keys or characters > MAX_CHARACTERS):
                break
            self._waiting.popleft()
            if not put.done.done():
                keys.add(key)
                group.append(put)
        return group

    def _write(self, group: list[_Put]) -> None:
        try:
            if len(group) == 1:
                super().put(group[0].item, group[0].condition)
            else:
                self.transact([Write(put.item, condition=put.condition) for put in group])
        except TransactionRefused as refused:
            alone = _Alone(maybe_landed=refused.maybe_landed)
            for put, failed, existing in zip(group, refused.failed, refused.existing, strict=True):
                mine = ConditionFailed(existing, maybe_landed=refused.maybe_landed)
                put.settle(mine if failed else alone)
        except Fault as fault:
            for put in group:
                put.settle(_Alone(maybe_landed=not fault.outcome_known))
        except Exception as failure:  # noqa: BLE001 - whatever it is, each put must hear of it
            for put in group:
                put.settle(failure)
        else:
            for put in group:
                put.settle()
        finally:
            self._write_what_waits()


def _characters(item: Item) -> int:
    """At least as many as its bytes, roughly: binary values are base64 here."""
    return sum(
        len(value) for attribute in item.values() for value in attribute.values() if isinstance(value, str)
    )

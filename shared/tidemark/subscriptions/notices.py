"""Finds the subscriptions that a write concerns: turns the table's stream records into notices for the
function `subscriptions`.

The notifier only sends notices; the function `subscriptions` keeps links, marks and deliveries. Notices may
arrive twice and in any order. A lost notice does no harm if the same state leads to another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tidemark.log.schema import ItemWrite
from tidemark.log.table import Table
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.subscriptions import records
from tidemark.subscriptions.configuration import follows
from tidemark.subscriptions.storage import load_followers, load_roster
from tidemark.wake.notifier import newest_of
from tidemark.wake.queue import WakeMessage


class NotANotice(ValueError):
    """A message that `encode_notice` did not write."""


@dataclass(frozen=True, slots=True)
class Appended:
    """A stream that the subscription follows has a new batch."""

    subscription_id: str
    mark: records.PendingMark


@dataclass(frozen=True, slots=True)
class Changed:
    """The subscription's item was written: its state may ask for a step."""

    subscription_id: str


@dataclass(frozen=True, slots=True)
class TimeCame:
    """The timer for the time that the subscription's state named."""

    subscription_id: str
    at_ms: int


Notice = Appended | Changed | TimeCame


def encode_notice(notice: Notice) -> str:
    """Encode as plain ASCII: an id or a path may hold characters that SQS refuses."""
    row: list[str | int]
    match notice:
        case Appended(name, mark):
            row = ["appended", name, mark.subscription_incarnation, mark.path, mark.stream_incarnation]
            row.append(mark.start)
        case TimeCame(name, at_ms):
            row = ["time", name, at_ms]
        case Changed(name):
            row = ["changed", name]
    return json.dumps(row, separators=(",", ":"))


def decode_notice(body: str) -> Notice:
    """Raises NotANotice."""
    try:
        match json.loads(body):
            case ["appended", str(subscription_id), str(incarnation), str(path), str(stream), int(start)]:
                return Appended(subscription_id, records.PendingMark(incarnation, path, stream, start))
            case ["changed", str(subscription_id)]:
                return Changed(subscription_id)
            case ["time", str(subscription_id), int(at_ms)]:
                return TimeCame(subscription_id, at_ms)
    except ValueError:
        pass
    raise NotANotice(body[:200])


def changed_from_write(write: ItemWrite) -> Changed | None:
    """The notice for a write of a subscription's item; None for others."""
    subscription_id = records.decode_subscription_pk(write.pk)
    return None if subscription_id is None or write.event == "REMOVE" else Changed(subscription_id)


class Subscribers:
    """Takes a query for the roster, and one for each stream if any subscription names streams one by one."""

    def __init__(self, table: Table, send: Callable[[Sequence[str]], None]) -> None:
        self._table = table
        self._send = send

    def notify(self, appends: Iterable[WakeMessage], changes: Iterable[Changed]) -> None:
        """Send the notices. Raises errors of the table and the queue; the records must then come again."""
        notices: dict[str, None] = {encode_notice(change): None for change in changes}
        plain = [append for append in newest_of(appends) if append.key.bucket == PLAIN_BUCKET]
        if plain:
            roster = load_roster(self._table)
            for append in plain:
                notices |= dict.fromkeys(map(encode_notice, self._concerned(append, roster)))
        if notices:
            self._send(list(notices))

    def _concerned(self, append: WakeMessage, roster: Sequence[records.RosterEntry]) -> list[Appended]:
        path = append.key.stream_id
        followers = {
            entry.incarnation: entry.subscription_id
            for entry in roster
            if follows(entry.pattern, entry.wake_stream, path)
        }
        if any(entry.has_explicit for entry in roster):
            for follower in load_followers(self._table, path):
                followers[follower.incarnation] = follower.subscription_id
        return [
            Appended(
                subscription_id, records.PendingMark(incarnation, path, append.incarnation, append.start)
            )
            for incarnation, subscription_id in followers.items()
        ]

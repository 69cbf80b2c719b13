"""What the janitor makes good: queues and waiters that crashed processes leave behind, and subscriptions
whose message was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tidemark.aws.sqs import QueueGone, Queues
from tidemark.log.table import Table
from tidemark.log.waiters import all_waiters, remove_lapsed
from tidemark.service.stores import Stores
from tidemark.subscriptions.messages import Changed, encode_attention
from tidemark.subscriptions.state import Step, next_step
from tidemark.subscriptions.storage import load_marks, load_roster, load_subscription

#: No registration lasts a tenth of this; a queue is younger until its first one.
ORPHAN_MS: Final = 10 * 60 * 1000
#: DynamoDB removes lapsed items for nothing, mostly within minutes; some engines never do. Items that are
#: left by then cost less to remove than to read again every round.
LAPSED_MS: Final = 60 * 60 * 1000


@dataclass(slots=True)
class WakeSwept:
    """Counts of what one run removed."""

    waiters: int = 0
    queues: int = 0


def sweep_wake(
    table: Table, queues: Queues, now_ms: int, has_time_left: Callable[[], bool] = lambda: True
) -> WakeSwept:
    """A queue that no living registration names is an orphan, once it is old enough to have
    had one. If its process was only suspended, it makes another one. Safe to repeat, and to stop
    anywhere. Raises Busy, OutcomeUnknown, QueueUnavailable."""
    swept = WakeSwept()
    in_use: set[str] = set()
    for waiter in all_waiters(table):
        if waiter.until_ms > now_ms:
            in_use.add(_name(waiter.queue_url))
        elif now_ms - waiter.until_ms >= LAPSED_MS and has_time_left():
            remove_lapsed(table, waiter)
            swept.waiters += 1
    for url in queues.all():
        if not has_time_left():
            break
        made_ms = queues.made_ms(url)
        if made_ms is not None and now_ms - made_ms >= ORPHAN_MS and _name(url) not in in_use:
            with suppress(QueueGone):
                queues.delete(url)
                swept.queues += 1
    return swept


def _name(url: str) -> str:
    return url.rpartition("/")[2]


def remind(
    stores: Stores, send: Callable[[Sequence[str]], None], has_time_left: Callable[[], bool] = lambda: True
) -> int:
    """Send a message for each subscription that is due, not created to the end, or idle with a mark. Returns
    how many. It takes one query for the roster, and one or two small reads for each subscription."""
    found: list[str] = []
    for entry in load_roster(stores.table):
        if not has_time_left():
            break
        record = load_subscription(stores.table, entry.subscription_id)
        step = Step.WAIT if record is None else next_step(record.wake, stores.clock_ms())
        if record is None or record.incarnation != entry.incarnation or not record.active:
            is_due = True
        elif step is Step.LOOK:
            is_due = bool(load_marks(stores.table, record.incarnation, limit=1))
        else:
            is_due = step is not Step.WAIT
        if is_due:
            found.append(encode_attention(Changed(entry.subscription_id)))
    if found:
        send(list(dict.fromkeys(found)))
    return len(found)

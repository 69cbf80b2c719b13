"""The backstop of subscriptions: those that should have been attended to by now, whatever message was
lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemark.log.subscriptions import load_marks, load_roster, load_subscription
from tidemark.protocol.wake_state import Step, next_step
from tidemark.service.stores import Stores
from tidemark.wake.attention import Changed, encode_attention


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

"""Waking readers that wait at the tail.

A waiting process registers itself with the stream and listens to a queue of its own. The trigger of
the table's stream sends a wake message to the queue of each registered process. A wake message says
"read again" and carries no data: it may come late, twice, or without a reason. No append may go unnoticed,
and the order of the steps ensures that:

    reader    register → consistent read → receive → consistent read
    trigger   commit → stream record → consistent query of those registered → send

`docs/live.md` says why, and what it costs; `tests/wake/test_interleavings_of_the_code.py` tries every order.
"""

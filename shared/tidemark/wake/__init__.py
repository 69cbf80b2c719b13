"""Waking readers that wait at the tail.

A waiting process registers itself with the stream and listens to a queue of its own; the
trigger of the table's stream rings the queues of those registered. A ring is a hint to look
again, never data: it may come late, twice, or for nothing. What must not happen is that an
append goes unnoticed, and for that the order of things suffices:

    reader    register → consistent read → receive → consistent read
    trigger   commit → stream record → consistent query of those registered → send

`docs/live.md` says why, and what it costs; `tests/wake/test_interleavings.py` tries every order.
"""

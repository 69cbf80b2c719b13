"""Waking readers that wait at the tail.

A waiting process registers itself with the stream and listens to a queue of its own. The trigger of the
table's stream sends a wake message to the queue of each registered process. A wake message only asks for
another read and carries no data, so it may come late, twice, or without a reason. The order of the steps
ensures that no append goes unnoticed:

    reader    register → consistent read → receive → consistent read
    trigger   commit → stream record → consistent query of the registrations → send

`docs/live.md` explains the reasons and the costs; `tests/wake/test_interleavings_of_the_code.py` tries every
order.
"""

"""Storage calls on the event loop, for a process that serves many requests at once.

The use cases are plain functions that call storage and wait. On a thread each, they spend
more on threads than on the calls (`benchmarks/`: 32 writers on 32 streams run at less than
half the speed). Here the same functions run in greenlets on the loop's own thread.
"""

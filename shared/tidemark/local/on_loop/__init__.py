"""Storage calls on the event loop, for a process that serves many requests at once.

The use cases are plain functions that call storage and wait. On a thread each, they cost more
CPU than here (`docs/benchmarks.md`), where the same functions run in greenlets on the loop's
own thread.
"""

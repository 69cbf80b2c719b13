"""The embedded engine: the table in SQLite and the blobs as files, in the server's own process.

The engine implements the protocols of `log/table.py` and `blobs.py`, uses nothing but its data directory, and
is created only by `server`.
"""

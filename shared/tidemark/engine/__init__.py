"""The embedded engine: the table on SQLite and the blobs as files, in the server's own process.

It stands behind the seams of `log/table.py` and `blobs.py`, and only `server` makes it. It touches its
data directory and nothing else.
"""

"""The server: one process with the embedded engine, or in a container with AWS behind it.

`tidemark serve` runs it. It may import every room but `local` and `ops`; no function imports it.
"""

"""Metrics and structured logs, written to standard output.

`aws` and the packages above may import this one; it imports only `settings`.
"""

"""Metrics and structured logs, written to standard output.

`aws` and the rooms above it may import it; it imports `settings` alone.
"""

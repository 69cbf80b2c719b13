"""Metrics and structured logs, written to standard output.

Every room but `protocol` imports it; it imports `settings` alone.
"""

"""Metrics, structured logs and traces.

Every room but `protocol` imports it; it imports none. It writes to standard output, and traces to the
daemon that Lambda runs.
"""

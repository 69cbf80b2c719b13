"""Metrics, structured logs and traces."""

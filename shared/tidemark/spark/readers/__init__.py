"""Streams into Arrow batches: one port (`port.py`) and a reader for each transport."""

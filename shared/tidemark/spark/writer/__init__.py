"""Rows into streams, exactly once: tasks stage them, the driver's commit publishes them."""

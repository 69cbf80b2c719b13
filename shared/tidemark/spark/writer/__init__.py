"""Writes rows to streams exactly once: tasks stage the rows, a manifest lists the appends, and the driver
publishes them."""

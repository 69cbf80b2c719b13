"""Rows into streams, exactly once: tasks stage them, a manifest says which appends they are, the driver
publishes them."""

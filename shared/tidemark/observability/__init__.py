"""What a process tells about itself: metrics, the report of an invocation, traces."""

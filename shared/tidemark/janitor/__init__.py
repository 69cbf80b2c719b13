"""What is removed, and when: streams whose time has come, trimmed batches, unused bodies, orphaned queues."""

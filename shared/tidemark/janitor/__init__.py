"""The janitor removes expired streams, trimmed batches, unused bodies and orphaned queues."""

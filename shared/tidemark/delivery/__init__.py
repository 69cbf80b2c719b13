"""Delivering wakes (§7): webhooks are called and wake events are written, by whoever works off the queue."""

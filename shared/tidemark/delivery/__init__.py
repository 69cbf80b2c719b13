"""Delivering wakes (§7): webhooks are called and wake events are written, by whoever works off the queue.

The function `deliver` and the server import it; it imports the service. Besides storage it touches the
receivers of webhooks, whose addresses it looks up and checks itself.
"""

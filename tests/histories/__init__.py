"""Recorded histories of clients, held to a model of what a log service does.

`model.py` is the service as if it did one thing after the other; `checker.py` looks for an order of a
history's operations that the model agrees with. `tests/simulation` records them."""

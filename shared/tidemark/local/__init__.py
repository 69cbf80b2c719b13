"""The local stack: the whole system on one machine, with no account (`python -m tidemark.local`)."""

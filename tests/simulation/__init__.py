"""The use cases on virtual time, over a simulated table and bucket: each seed is one interleaving with its
faults, and plays the same way every time. `python -m tests.simulation --seeds 10000` plays many."""

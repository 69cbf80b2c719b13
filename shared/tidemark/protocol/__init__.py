"""The protocol's rules as pure functions: no I/O, no clock, no randomness.

Section numbers (§) refer to the Durable Streams `PROTOCOL.md`.
"""

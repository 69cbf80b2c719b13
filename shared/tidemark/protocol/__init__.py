"""The protocol's rules as pure functions: no I/O, no clock, no randomness.

Section numbers (§) refer to the Durable Streams `PROTOCOL.md`. The client and the server share only this
room, so the version of the package is here: `tidemark` imports the client."""

__version__ = "0.1.0"

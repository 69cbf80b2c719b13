"""The janitor removes expired streams, trimmed batches and unused bodies; the packer puts old batches into
S3.

The functions and the server import it; it imports the service. It alone removes batches and objects, and
only what a queue entry names and the log no longer shows (`docs/design.md`).
"""

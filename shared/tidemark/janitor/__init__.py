"""The janitor removes expired streams, trimmed batches and unused bodies. The packer moves old batches to S3.

The Lambda functions and the server import this package; it imports the service. No other code removes batches
or objects. The janitor removes only data that a queue entry names and the log no longer shows
(`docs/design.md`).
"""

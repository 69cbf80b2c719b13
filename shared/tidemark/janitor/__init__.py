"""The janitor removes expired streams, trimmed batches and unused bodies. The packer moves old batches to S3.

The Lambda functions and the server import this package; it imports the service. No other code removes batches
or objects. Data is removed only if a queue entry names it and the log no longer shows it (`docs/design.md`).
"""

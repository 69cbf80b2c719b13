"""Use cases: load, decide, commit. The room knows no HTTP, and is synchronous except for the group commit,
which serves concurrent requests.

The use cases import the rules, the log and the blobs, and reach storage through `Stores` alone. The callers
are `http`, `subscriptions`, the janitor and Spark. A docstring names the errors of its operation. Every
operation may also raise those of storage: Busy, OutcomeUnknown, StorageUnavailable, StorageSilent, Damaged
and FormatTooNew.
"""

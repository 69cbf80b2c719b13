"""The log: a stream is a chain of batches in one DynamoDB table (`docs/design.md`).

`schema` has one module for each kind of item. `table` is the interface to storage, which DynamoDB and the
embedded engine implement. The other modules each read or write one part of the chain. The service and all
higher layers import this package; it imports only `aws` and `protocol`. `protocol` decides whether a write is
allowed. `combining` (which writer may commit an append) and `pack_format` (the bytes of a pack) are rules of
storage, without I/O and without a clock.
"""

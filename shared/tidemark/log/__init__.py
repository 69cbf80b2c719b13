"""The log: a stream as a chain of batches in one DynamoDB table (`docs/design.md`).

`schema` has a module for each kind of item, `table` is the seam that DynamoDB and the embedded engine stand
behind, and the other modules each read or write one part of the chain. The service and everything above
import it; it imports `aws` and the rules. What may be written is a rule of `protocol`. `combining` (who may
commit whose append) and `pack_format` (the bytes of a pack) are rules of storage: like those of `protocol`,
they do no I/O and know no clock.
"""

"""The log: a stream as a chain of batches in one DynamoDB table (`docs/design.md`).

`schema` has a module for each kind of item, `table` is the seam that DynamoDB and the embedded engine stand
behind, and the other modules each read or write one part of the chain. The service and everything above
import it; it imports `aws` and the rules, and decides nothing: what may be written is a rule of `protocol`.
"""

"""The log: a stream as a chain of batches in one DynamoDB table (`docs/design.md`)."""

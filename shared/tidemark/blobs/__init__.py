"""Bodies too large for the table, in S3."""

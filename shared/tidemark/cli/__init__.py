"""The command `tidemark`. It may import every room but `spark`, `ops` and `local`; only `ops` imports it."""

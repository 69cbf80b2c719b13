"""The command `tidemark`. It may import every room but `spark` and `ops`; only `ops` imports it."""

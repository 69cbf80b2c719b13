"""The command `tidemark`. May import every room except `spark` and `ops`; only `ops` imports this room."""

"""Use cases: load, decide, commit. Free of HTTP, and synchronous but for the
group commit, which exists because many requests are under way at once."""

"""The official client libraries against a running server, both ways in."""

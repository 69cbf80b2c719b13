"""Access control: tokens and the keys that sign them, required scopes, the origin secret, rate limits."""

"""Subscriptions, below `/v1/stream/__ds/` (§6, §7). Imported with the first request: pydantic's models cost a
cold start that reads and appends need not pay."""

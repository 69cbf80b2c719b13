"""The control surface below `/v1/stream/__ds/` (§6, §7). Imported with its first request: FastAPI's models
cost a cold start that reads and appends need not pay."""

"""Subscriptions (§6, §7): appends to streams lead to calls of webhooks and to wake events.

- Rules: `configuration`, `state`, `shared`. Storage: `records`, `storage`, `pending`.
- Use cases, which `http` calls: `lifecycle`, `workers`, `takes`.
- Work after an append, in two functions and in the server: `notices`, `deliveries`, `webhook`,
  `signing_keys`.
"""

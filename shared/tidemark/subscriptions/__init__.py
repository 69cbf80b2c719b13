"""Subscriptions (§6, §7): webhooks are called, and wake events are written, for what is new in streams.

`configuration`, `state` and `webhook_url` are rules; `records`, `storage` and `pending` what is stored;
`lifecycle` and `workers` the use cases, which `http` asks for. Behind an append, in two functions and in the
server, stand `notices`, `deliveries`, `fairness`, `webhook` and `signing_keys`.
"""

"""Requests of webhooks and of the durable proxy: URLs, name lookups, checked connections."""

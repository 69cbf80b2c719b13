"""The use cases of subscriptions (§6, §7)."""

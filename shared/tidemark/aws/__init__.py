"""The ways to AWS: signed requests, replies that are proven whole, retries, and one client a service."""

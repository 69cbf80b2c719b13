"""Access to AWS: signed requests, proof that a reply is whole, retries, and a client for each service."""

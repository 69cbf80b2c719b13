"""Tidemark: the serverless home of the Durable Streams protocol."""

__version__ = "0.1.0"

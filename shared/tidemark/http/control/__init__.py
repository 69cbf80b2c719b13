"""The control surface: what people and monitors ask about streams, and the console that shows it.

Nothing on the way of a stream's data imports it: `tidemark.http.deferred` does, with its first request.
"""

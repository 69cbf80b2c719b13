"""The catalog for people and monitors: listings, stats, start points, and a token's scopes."""

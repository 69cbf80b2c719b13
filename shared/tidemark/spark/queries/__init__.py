"""Reads as Spark runs them: which streams, from where to where, and in which partitions."""

"""Fuzzing: requests made from the published document, and raw events, held to two rules.

No answer is a 5xx, and nothing changes that was not acknowledged.
"""

"""Waking readers that wait at the tail."""

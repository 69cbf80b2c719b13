"""Hypothesis without deadlines: no test here depends on a time being short."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("tidemark", deadline=None)
settings.load_profile("tidemark")

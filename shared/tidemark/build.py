"""The commit that the package was built from."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

#: Written by what builds the package: shared/Makefile for the layer, the Dockerfile for the container.
COMMIT_FILE: Final = Path(__file__).with_name("commit.txt")


@cache
def built_from() -> str | None:
    """The last commit that changed the package or its lock, with `-dirty` where files were not committed.
    None in a checkout, which runs whatever its files say."""
    try:
        return COMMIT_FILE.read_text().strip() or None
    except OSError:
        return None

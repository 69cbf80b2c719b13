"""What a test needs and a machine may lack: an engine, a program.

Ask for it where it is used, in a fixture or in a test: NotAvailable becomes a skipped test that says what is
missing (`tests/conftest.py`).
"""

from __future__ import annotations

import os
import shutil

from tidemark.local import ministack, moto
from tidemark.local.dynoxide import EngineNotAvailable, find_binary
from tidemark.local.engines import ROOT


class NotAvailable(RuntimeError):
    """The message says what is missing."""


def missing_engine(engine: str | None) -> str | None:
    """Why a test cannot have this engine (None: any at all), or None if it can."""
    if engine == "dynoxide":
        try:
            find_binary(os.environ, ROOT)
        except EngineNotAvailable as reason:
            return f"dynoxide is not available: {reason}"
    installed = {"moto": moto.is_installed(), "ministack": ministack.is_installed()}
    if engine in installed and not installed[engine]:
        return f"{engine} is not installed (requirements/dev.txt)"
    if not any(installed.values()):
        return "neither moto nor ministack is installed (requirements/dev.txt)"
    return None


def require_engine(engine: str | None = None) -> None:
    """Raises NotAvailable."""
    if missing := missing_engine(engine):
        raise NotAvailable(f"needs storage: {missing}")


def require_program(name: str) -> str:
    """Its path. Raises NotAvailable."""
    found = shutil.which(name)
    if found is None:
        raise NotAvailable(f"{name} is not installed")
    return found

"""Replacing a name of the emulator: only one that is there."""

from __future__ import annotations

from typing import Any


def replace(module: Any, name: str, value: Any) -> Any:
    """Put `value` in place of `module.name` and return what was there.

    Raises SystemExit when the emulator has no such name: another version than the pinned one is installed.
    """
    if not hasattr(module, name):
        raise SystemExit(f"this ministack has no {module.__name__}.{name}: install the pinned version")
    old = getattr(module, name)
    setattr(module, name, value)
    return old

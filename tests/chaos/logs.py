"""What the server's log must not hold."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.judge import Violation

TRACEBACK = "Traceback (most recent call last):"


def tracebacks(log: str) -> list[str]:
    """The last line of each: the exception and its message."""
    found, inside = [], False
    for line in log.splitlines():
        if line.strip() == TRACEBACK:
            inside = True
        elif inside and line and not line[0].isspace():
            found.append(line)
            inside = False
    return found


def server_log_violations(path: Path) -> list[Violation]:
    log = path.read_text(errors="replace") if path.exists() else ""
    return [Violation("traceback in the server's log", "", line[:300]) for line in tracebacks(log)]

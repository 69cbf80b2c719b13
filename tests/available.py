"""What a test needs and a machine may lack: an engine, a program.

Ask for it where it is used, in a fixture or in a test: NotAvailable becomes a skipped test that says what is
missing (`tests/conftest.py`).
"""

import importlib.util
import shutil
import subprocess
import sys


class NotAvailable(RuntimeError):
    """The message says what is missing."""


def require_engine(engine: str = "embedded") -> None:
    """Raises NotAvailable. Beside the embedded engine S3 and SQS are ministack's."""
    needed = "moto" if engine == "moto" else "ministack"
    if importlib.util.find_spec(needed) is None:
        raise NotAvailable(f"needs storage: {needed} is not installed (requirements/dev.txt)")


def require_program(name: str) -> str:
    """Its path. Raises NotAvailable."""
    found = shutil.which(name)
    if found is None:
        raise NotAvailable(f"{name} is not installed")
    return found


def require_registry(program: str) -> None:
    """Of pip or npm. Raises NotAvailable if it does not answer."""
    asking = {
        "npm": ["npm", "view", "@durable-streams/client", "version"],
        "pip": [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", "click"],
    }
    asked = subprocess.run(asking[program], capture_output=True, text=True, check=False, timeout=300)
    if asked.returncode:
        raise NotAvailable(f"no registry of {program} answers: {asked.stderr[:300]}")

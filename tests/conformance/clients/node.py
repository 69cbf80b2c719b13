"""Programs that Node runs with the packages of `node_modules`. Each checks its results itself."""

import os
import subprocess
from pathlib import Path

from tests.available import NotAvailable
from tests.conformance.servers import ROOT, node

CLIENT = "@durable-streams/client"
SLOW_READER = Path(__file__).with_name("npm_slow_reader.mjs")


def run_node(program: Path, *, package: str = CLIENT, **environment: str) -> str:
    """What it prints, if it ends with code 0. Raises NotAvailable."""
    if not (ROOT / "node_modules" / package).exists():
        raise NotAvailable("the npm packages are not installed (`make install` installs them)")
    command, env = [node(), str(program)], os.environ | environment
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

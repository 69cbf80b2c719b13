"""The commands in docs/console.md run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.conformance.servers import ROOT, running, tidemark_server


def test_the_commands_of_the_console_page_run_as_printed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "console.md").read_text()
    [script] = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    command = tmp_path / "tidemark"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tidemark.ops.cli "$@"\n')
    command.chmod(0o755)
    (tmp_path / "server").mkdir()
    with running(tidemark_server("asgi", tmp_path / "server")) as server:
        environment = os.environ | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "TIDEMARK_URL": server.base_url,
        }
        ran = subprocess.run(
            ["bash", "-euc", script], env=environment, capture_output=True, text=True, check=True
        )
    lines = ran.stdout.splitlines()
    assert lines[0] == "2 messages"
    assert lines[1].startswith("chat/42  open  application/json")
    assert lines[-1] == '{"who": "b", "text": "low tide"}'

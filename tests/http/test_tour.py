"""The tour with curl of docs/tutorial.md and the first lines of the README run as they are printed."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conformance.servers import ROOT, running, tidemark_server
from tests.programs import find, needs

TOUR = (ROOT / "docs" / "tutorial.md").read_text()
FIRST_LINES = re.findall(r"```sh\n(curl .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
BLOCKS = re.findall(r"```sh\n(.*?)```", TOUR, re.DOTALL)
CURL = find("curl")
#: A long-poll finds nothing (204), a producer's repetition is 204.
STATUSES = [201, 204, 204, 200, 200, 200, 204, 200, 200, 204, 201, 204, 204, 204]

pytestmark = [needs(CURL, "curl", "curl"), pytest.mark.slow]


def statuses_of_a_run(base_url: str, directory: Path) -> list[int]:
    """Runs every line of the tour, with a curl in front that writes each response's status into a file."""
    said = directory / "statuses"
    said.write_text("")
    wrapper = directory / "curl"
    wrapper.write_text(
        f'#!/bin/sh\nexec {CURL} "$@" --max-time 60 -w "%{{stderr}}%{{http_code}}\\n" 2>>{said}\n'
    )
    wrapper.chmod(0o755)
    script = "\n".join(BLOCKS).replace("http://127.0.0.1:4437", base_url)
    environment = os.environ | {"PATH": f"{directory}:{os.environ['PATH']}"}
    subprocess.run(
        ["bash", "-euc", script], env=environment, stdout=subprocess.DEVNULL, check=True, timeout=300
    )
    return [int(status) for status in re.findall(r"^(\d{3})$", said.read_text(), re.MULTILINE)]


@pytest.mark.parametrize("via", ["asgi", "lambda"])
def test_the_tour_gets_the_statuses_of_its_comments_and_can_be_repeated(via: str, tmp_path: Path) -> None:
    assert len(BLOCKS) == 1
    assert shutil.which("bash")
    server = tidemark_server(via, tmp_path, LONG_POLL_SECONDS="1", SSE_SECONDS="1")
    with running(server):
        assert statuses_of_a_run(server.base_url, tmp_path) == STATUSES
        assert statuses_of_a_run(server.base_url, tmp_path) == STATUSES


def test_the_first_lines_of_the_readme_show_what_is_written(tmp_path: Path) -> None:
    with running(tidemark_server("asgi", tmp_path, SSE_SECONDS="1")) as server:
        script = FIRST_LINES[0].replace("http://127.0.0.1:4437", server.base_url) + "wait"
        done = subprocess.run(
            ["bash", "-euc", script], capture_output=True, text=True, check=True, timeout=60
        )
    assert "event: data\ndata:high tide\n" in done.stdout

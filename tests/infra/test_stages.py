"""The stages of .ci/run and .ci/nightly: a failure is never hidden, and is the last thing printed."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: `fails` goes on behind its first failure unless errexit is in force in it.
FUNCTIONS = """
set -euo pipefail
. .ci/stages.sh
fails() { echo broken; false; echo went on; }
good() { stage first true; stage second echo fine; }
bad() { stage third true; stage fourth fails; stage fifth true; }
endless() { stage sixth sleep infinity; }
"""


def run(script: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        ["bash", "-c", FUNCTIONS + script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(
    "script",
    ["run_lanes good bad", "run_lanes bad endless", "run_lanes endless bad", "bad", "stage fourth fails"],
)
def test_a_failure_ends_the_run_and_is_the_last_thing_printed(script: str) -> None:
    """Of the other lanes too, which would never end by themselves."""
    code, said = run(f"{script}; echo went on")
    assert code == 1
    assert "went on" not in said
    assert "=== fifth: begins" not in said
    assert said[-2] == "broken"
    assert said[-1].startswith("=== fourth: FAILED after ")


def test_by_night_the_stages_after_a_failure_are_run_and_the_exit_code_tells_it() -> None:
    code, said = run("KEEP_GOING=yes; bad")
    assert code == 1
    assert "=== fifth: begins" in said
    assert "went on" not in said
    assert said[-1].startswith("=== fourth: FAILED after ")

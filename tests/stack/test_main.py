"""`python -m tests.stack PROJECT`: a system of another template; its end, its schedule, its emulator."""

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.processes import children_of
from tests.server import test_run
from tests.server.test_run import Start, System, outcome
from tests.stack.conftest import write_function
from tests.waiting import until

pytestmark = pytest.mark.slow

start = test_run.start

WAITING = """
import os, threading

def handler(event, context):
    if event["rawPath"] == "/wait":
        open("waiting", "w").close()
        threading.Event().wait()
    return {"statusCode": 200, "body": "ok"}
"""


def test_a_waiting_handler_does_not_delay_the_end(start: Start, project: Path, tmp_path: Path) -> None:
    """A terminal sends SIGINT to the whole process group, but the engines must outlive the last request."""
    write_function(project, "probe", WAITING)
    system = System(start(str(project), VIA="lambda"))
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(system.request("GET", "/wait")[0]))
    waiting.start()
    until((tmp_path / "waiting").exists)
    os.killpg(system.process.pid, signal.SIGINT)
    code, out, err = outcome(system.process)
    waiting.join()
    assert (code, out, answers) == (0, "", [503])
    assert "Traceback" not in err


def test_an_emulator_that_dies_ends_the_system(start: Start) -> None:
    """Without it large bodies cannot be acknowledged."""
    system = System(start(VIA="lambda"))
    [child] = children_of(system.process.pid)
    os.kill(child, signal.SIGKILL)
    code, out, err = outcome(system.process)
    assert (code, out) == (1, "")
    [line] = [line for line in err.splitlines() if "was ended by signal 9" in line]
    assert line.endswith("; stopping")
    assert "Traceback" not in err


def test_the_janitor_runs_on_its_schedule_and_its_failures_are_not_fatal(
    start: Start, project: Path, tmp_path: Path
) -> None:
    """The janitor gets EventBridge's event, fails, and runs again."""
    code = """
import json

def handler(event, context):
    with open("rounds", "a") as rounds:
        print(json.dumps([event["source"], event["detail-type"], context.function_name]), file=rounds)
    raise RuntimeError("the tide is in")
"""
    write_function(project, "sweeper", code)
    system = System(start(str(project), VIA="lambda", JANITOR_SECONDS="0.05"))
    rounds = tmp_path / "rounds"
    until(lambda: rounds.exists() and len(rounds.read_text().splitlines()) >= 2)
    assert system.request("GET", "/")[0] == 200
    returncode, _, err = system.end()
    assert returncode == 0
    assert "RuntimeError: the tide is in" in err
    assert set(rounds.read_text().splitlines()) == {'["aws.events", "Scheduled Event", "Sweeper"]'}

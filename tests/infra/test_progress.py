"""What takes long says how far it is."""

from __future__ import annotations

import io

import pytest

from benchmarks.contest import progress_line
from tidemark.spark.job import Job


def test_the_benchmark_says_how_many_measurements_are_left() -> None:
    assert progress_line(3, 12, 30.0) == "  3 of 12 measurements, 30 s; about 90 s are left"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_job_writes_over_sparks_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    job = Job("archive")
    job.say("batch 1")
    assert terminal.getvalue() == "\r\x1b[Karchive: batch 1\n"


def test_a_job_writes_plain_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    Job("archive").say("batch 1")
    assert log.getvalue() == "archive: batch 1\n"

"""What takes long says how far it is."""

from __future__ import annotations

import io

import pytest

from tidemark.spark.job import Job


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "said"),
    [(Terminal(), "\r\x1b[Karchive: batch 1\n"), (io.StringIO(), "archive: batch 1\n")],
    ids=["over Spark's progress on a terminal", "a line in a log"],
)
def test_a_job_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, said: str) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    Job("archive").say("batch 1")
    assert stream.getvalue() == said

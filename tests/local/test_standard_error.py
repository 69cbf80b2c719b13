"""Each report is one write, so that no line of another thread comes into the middle of it."""

from __future__ import annotations

import io
import logging
from contextlib import redirect_stderr

from tidemark.server.request_log import LoggedRequest, RequestLog, report, report_failure


class Writes(io.StringIO):
    """Keeps what each write wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def write(self, text: str) -> int:
        self.texts.append(text)
        return len(text)


def failure_with_a_cause() -> BaseException:
    try:
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            raise ValueError("the failure") from cause
    except ValueError as failure:
        return failure


def test_a_report_and_its_newline_are_one_write() -> None:
    with redirect_stderr(Writes()) as writes:
        report("a line")
    assert writes.texts == ["a line\n"]


def test_a_traceback_and_those_of_its_causes_are_one_write() -> None:
    with redirect_stderr(Writes()) as writes:
        report_failure(failure_with_a_cause())
    [text] = writes.texts
    assert "KeyError: 'the cause'\n\nThe above exception was the direct cause" in text
    assert text.endswith("ValueError: the failure\n")


def test_the_line_of_a_request_is_one_write() -> None:
    writes = Writes()
    request = LoggedRequest()
    request.watch({"type": "http.response.start", "status": 503})
    RequestLog(writes, logging.WARNING).write({"method": "GET", "raw_path": b"/a"}, request)
    [line] = writes.texts
    assert line.endswith("B out\n")

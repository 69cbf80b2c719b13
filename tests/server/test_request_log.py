"""The request log: which requests have a line at which level, what a line holds, and what it never holds."""

import asyncio
import io
import logging
import re
from contextlib import redirect_stderr

import pytest

from tidemark.server import Message, Receive, Scope, Send, request_log
from tidemark.server.http_server import Requests

Response = tuple[int, list[tuple[bytes, bytes]], bytes]
CREATED: Response = (201, [(b"stream-next-offset", b"0000000000000007")], b"")
MISSING: Response = (
    404,
    [(b"content-type", b"application/json")],
    b'{"error": "This stream does not exist"}',
)
BROKEN: Response = (503, [], b'{"message": "Service Unavailable"}')


def lines_of(response: Response, level: int, *, path: bytes = b"/a") -> str:
    """The lines for one request with a body of three bytes and this `response`."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": response[0], "headers": response[1]})
        await send({"type": "http.response.body", "body": response[2]})

    async def receive() -> Message:
        return {"type": "http.request", "body": b"abc"}

    async def send(message: Message) -> None:
        pass

    output = io.StringIO()
    requests = Requests(application)
    requests.log = request_log.RequestLog(output, level)
    scope = {"type": "http", "method": "PUT", "raw_path": path, "query_string": b"token=secret"}
    asyncio.run(requests(scope, receive, send))
    return output.getvalue()


def test_a_request_is_one_line_with_time_bytes_and_offset_but_never_its_query() -> None:
    line = lines_of(CREATED, logging.INFO)
    expected = r"\d\d:\d\d:\d\d PUT /a 201 \d+ ms, 3 B in, 0 B out, offset 0000000000000007\n"
    assert re.fullmatch(expected, line), line


@pytest.mark.parametrize(
    ("response", "level", "said"),
    [
        (CREATED, logging.WARNING, ""),
        (MISSING, logging.WARNING, ": This stream does not exist\n"),
        (BROKEN, logging.WARNING, ": Service Unavailable\n"),
        (MISSING, logging.ERROR, ""),
        (BROKEN, logging.ERROR, ": Service Unavailable\n"),
        # The application has logged it already, and the client did not get this status.
        ((499, [], b""), logging.WARNING, ""),
        # The producer sends it again.
        ((409, [(b"producer-expected-seq", b"3")], b'{"error": "gap"}'), logging.WARNING, ""),
        ((409, [(b"producer-expected-seq", b"3")], b'{"error": "gap"}'), logging.INFO, ": gap\n"),
    ],
)
def test_the_level_says_which_failures_have_a_text(response: Response, level: int, said: str) -> None:
    written = lines_of(response, level)
    assert written.endswith(said)
    assert bool(written) == bool(said)
    assert "secret" not in written


def test_a_request_cannot_add_lines_to_the_log() -> None:
    error = b'{"error": "bad value \\u001b[31m\\nPUT /forged 200"}'
    written = lines_of((400, [], error), logging.WARNING, path=b"/\x1b[2J\n\xff")
    assert written.count("\n") == 1
    assert "\x1b" not in written
    assert request_log.printable("é") == "é"


@pytest.mark.parametrize(
    "body", [b"", b"not JSON", b"\xff", b"[1]", b'{"error": 5}', b'{"other": "x"}', b'"x"']
)
def test_a_failure_without_an_error_text_is_logged_without_one(body: bytes) -> None:
    assert request_log.error_text(body) == ""


class Writes(io.StringIO):
    """Keeps what each write wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def write(self, text: str) -> int:
        self.texts.append(text)
        return len(text)


def test_a_line_and_a_traceback_with_its_causes_are_one_write_each() -> None:
    writes, request = Writes(), request_log.LoggedRequest()
    request.watch({"type": "http.response.start", "status": 503})
    request_log.RequestLog(writes, logging.WARNING).write({"method": "GET", "raw_path": b"/a"}, request)
    failure = ValueError("the failure")
    failure.__cause__ = KeyError("the cause")
    with redirect_stderr(writes):
        request_log.report("a line")
        request_log.report_failure(failure)
    of_a_request, line, traceback = writes.texts
    assert of_a_request.endswith("B out\n")
    assert line == "a line\n"
    assert "KeyError: 'the cause'\n\nThe above exception was the direct cause" in traceback
    assert traceback.endswith("ValueError: the failure\n")

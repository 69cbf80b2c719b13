"""The request log of the local server: one line a request, on standard error.

`LOG_LEVEL=INFO` logs every request once its response has ended; `WARNING`, the default, logs those that are
answered 4xx or 5xx, with the error's text, unless a producer sends them again because they overtook another;
`ERROR` logs 5xx alone. Queries and headers are left out: they may hold tokens.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Final, TextIO

from tidemark.observability.metrics import overtook
from tidemark.server import Message, Scope

#: So much of an error's body is kept: the reason is at its beginning.
ERROR_BYTES: Final = 4096
#: The client left before it had sent its request: nobody got this status, and the application has logged it.
CLIENT_LEFT: Final = 499


class LoggedRequest:
    """The fields of a request's log line, collected from the messages of its response."""

    __slots__ = ("error", "offset", "overtook", "received", "sent", "started_at", "status")

    def __init__(self) -> None:
        self.started_at = time.perf_counter()
        self.status = 0
        self.received = 0
        self.sent = 0
        self.offset = b""
        self.overtook = False
        self.error = b""

    def watch(self, message: Message) -> None:
        """Takes note of a message of the response, in the order in which they are sent."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message.get("headers", ())
            self.overtook = overtook(message)
            self.offset = next((value for name, value in headers if name == b"stream-next-offset"), b"")
            return
        body = message.get("body", b"")
        self.sent += len(body)
        if self.status >= 400 and not self.error:
            self.error = bytes(body[:ERROR_BYTES])


class RequestLog:
    """Writes the lines. `level` is one of `logging`'s numbers."""

    def __init__(self, output: TextIO, level: int = logging.WARNING) -> None:
        self._output = output
        #: Responses with a lower status are not logged, and nothing is collected for them.
        self.from_status = 0 if level <= logging.INFO else 400 if level <= logging.WARNING else 500

    def write(self, scope: Scope, request: LoggedRequest) -> None:
        milliseconds = (time.perf_counter() - request.started_at) * 1000
        path = printable((scope.get("raw_path") or b"").decode("latin-1"))
        parts = [f"{milliseconds:.0f} ms", f"{request.received} B in", f"{request.sent} B out"]
        if request.offset:
            parts.append(f"offset {printable(request.offset.decode('latin-1'))}")
        error = error_text(request.error)
        status = str(request.status) if request.status else "no response"
        line = f"{scope['method']} {path} {status} {', '.join(parts)}"
        reason = f": {error}" if error else ""
        # One write, as in `report`: other threads write there too.
        self._output.write(f"{time.strftime('%H:%M:%S')} {line}{reason}\n")
        self._output.flush()


def write_audit_lines(output: TextIO) -> None:
    """The lines that authorization logs for changes, with the time. A function's platform does this for it;
    here nothing else would write them, because they are no warnings."""
    handler = logging.StreamHandler(output)
    formatter = handler.formatter = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    log = logging.getLogger("tidemark.audit")
    log.handlers, log.propagate = [handler], False


def error_text(body: bytes) -> str:
    """The sentence in an error's body: the application's `error`, or the gateway's `message`."""
    try:
        document = json.loads(body)
    except ValueError:
        return ""
    text = (document.get("error") or document.get("message")) if isinstance(document, dict) else None
    return printable(text) if isinstance(text, str) else ""


def printable(text: str) -> str:
    """Control characters escaped: a request must not write lines of its own."""
    return text if text.isprintable() else ascii(text)[1:-1]


def report(text: str) -> None:
    """A line, or several; the last newline is added."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def report_failure(error: BaseException) -> None:
    """Report an error with its traceback, and those of its causes."""
    report("".join(traceback.format_exception(error)).rstrip("\n"))

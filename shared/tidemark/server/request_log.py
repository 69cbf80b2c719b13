"""The request log of the server: one line for each request, on standard error.

`LOG_LEVEL=INFO` logs every request when its response has ended. `WARNING`, the default, logs the 4xx and 5xx
with the error's text, except for a producer's append that overtook an earlier one, because the producer
retries it. `ERROR` logs only 5xx. Queries and headers are left out, because they can contain tokens.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Final, TextIO

from tidemark.observability.metrics import overtook
from tidemark.server import Message, Scope

#: Bytes kept of an error's body: the reason is at its beginning.
ERROR_BYTES: Final = 4096
#: Status of a request whose client disconnected while sending it. The application has logged that already.
CLIENT_LEFT: Final = 499


@dataclass(slots=True)
class LoggedRequest:
    """The fields of a request's log line, collected from the messages of its response."""

    started_at: float = field(default_factory=time.perf_counter)
    status: int = 0
    received: int = 0
    sent: int = 0
    offset: bytes = b""
    overtook: bool = False
    error: bytes = b""

    def watch(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message.get("headers", ())
            self.overtook = overtook(self.status, headers)
            self.offset = next((value for name, value in headers if name == b"stream-next-offset"), b"")
            return
        body = message.get("body", b"")
        self.sent += len(body)
        if self.status >= 400 and not self.error:
            self.error = bytes(body[:ERROR_BYTES])


class RequestLog:
    """Writes the lines. `level` is a level of `logging`."""

    def __init__(self, output: TextIO, level: int = logging.WARNING) -> None:
        self._output = output
        #: Responses with a lower status are not logged, and their fields are not collected.
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
        # One write for the whole line, because other threads write to standard error too.
        self._output.write(f"{time.strftime('%H:%M:%S')} {line}{reason}\n")
        self._output.flush()


def write_audit_lines(output: TextIO) -> None:
    """Print the audit log's lines, with the time. On Lambda the platform prints the lines. Here Python would
    drop them, because their level is below WARNING."""
    handler = logging.StreamHandler(output)
    formatter = handler.formatter = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    log = logging.getLogger("tidemark.audit")
    log.handlers, log.propagate = [handler], False


def error_text(body: bytes) -> str:
    """The error text in a JSON body: the application's `error`, or the gateway's `message`."""
    try:
        document = json.loads(body)
    except ValueError:
        return ""
    text = (document.get("error") or document.get("message")) if isinstance(document, dict) else None
    return printable(text) if isinstance(text, str) else ""


def printable(text: str) -> str:
    """Escape control characters, so that a request cannot forge lines of the log."""
    return text if text.isprintable() else ascii(text)[1:-1]


def report(text: str) -> None:
    """Print a line, or several, and a newline."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def report_failure(error: BaseException) -> None:
    """Print an error's traceback, and the tracebacks of its causes."""
    report("".join(traceback.format_exception(error)).rstrip("\n"))

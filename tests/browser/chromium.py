"""A headless Chromium that shows one page, and the server that the page comes from.

No library drives it: a page reports what it has to say to the server it came from. What goes wrong inside it
stands in the browser's own console, which is part of every failure's message.
"""

import json
import os
import queue
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import pytest

from tests.conformance.servers import ROOT
from tests.http_server import Handler, serving
from tests.programs import find, needs

CHROMIUM: Final = find("chromium", "chromium-browser", "google-chrome")
NEEDS_CHROMIUM: Final = needs(CHROMIUM, "chromium", "chromium")
FLAGS: Final = (
    "--headless",
    # A container has no namespaces to give away; what is shown here is our own.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    # Those of `cutting.py`.
    "--ignore-certificate-errors",
)
PAGES: Final = Path(__file__).with_name("pages")
CLIENT: Final = ROOT / "node_modules" / "@durable-streams" / "client" / "dist" / "index.js"
#: What a page may load, and nothing else.
FILES: Final[Mapping[str, Path]] = {
    "/client.html": PAGES / "client.html",
    "/client.js": CLIENT,
    "/cross-origin.html": PAGES / "cross-origin.html",
    "/durable-proxy.html": ROOT / "docs" / "examples" / "durable-proxy.html",
    "/durable-proxy-driver.html": PAGES / "durable-proxy-driver.html",
    "/many-streams.html": ROOT / "docs" / "examples" / "many-streams.html",
    "/quickstart.html": PAGES / "quickstart.html",
    "/socket.html": PAGES / "socket.html",
    "/socket.js": ROOT / "shared" / "tidemark" / "console" / "socket.js",
    "/stop.html": PAGES / "stop.html",
    "/tail.html": ROOT / "docs" / "examples" / "tail.html",
    "/watch.html": PAGES / "watch.html",
}
#: Long enough that only a hang reaches it.
PATIENCE_SECONDS: Final = 120.0
_CONSOLE: Final = re.compile(r"^\[.*CONSOLE.*$", re.MULTILINE)


class _Pages(Handler):
    """The origin of the pages, which is never that of the streams."""

    reports: queue.Queue[Any]

    def answer(self) -> None:
        if self.command == "POST":
            self.reports.put(json.loads(self.received()))
            self.respond(204)
            return
        file = FILES.get(urlsplit(self.path).path)
        body = file.read_bytes() if file else b""
        kind = "text/javascript" if file and file.suffix == ".js" else "text/html"
        self.respond(200 if file else 404, body, [("Content-Type", f"{kind}; charset=utf-8")])


@dataclass
class Page:
    """One page in a browser of its own."""

    process: subprocess.Popen[bytes]
    log: Path
    reports: queue.Queue[Any]
    patience_seconds: float = field(default=PATIENCE_SECONDS)

    def report(self) -> Any:
        """What the page reports when it is done. An error in it that nobody caught fails the test at once."""
        deadline = time.monotonic() + self.patience_seconds
        while time.monotonic() < deadline:
            with suppress(queue.Empty):
                return self.reports.get(timeout=0.2)
            if "Uncaught" in self.console():
                pytest.fail(f"the page failed:\n{self.console()}")
            if self.process.poll() is not None:
                pytest.fail(f"the browser ended with {self.process.returncode}:\n{self.log_tail()}")
        return pytest.fail(f"no report in {self.patience_seconds:.0f} s; the console:\n{self.console()}")

    def console(self) -> str:
        """What pages logged, and the errors nobody caught."""
        return "\n".join(_CONSOLE.findall(self.log.read_text(errors="replace"))[-40:])

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@contextmanager
def opened(page: str, task: object) -> Iterator[Page]:
    """Shows the page `page` of `FILES`, which finds `task` in its address."""
    reports = queue.Queue[Any]()
    query = quote(json.dumps(task))
    with (
        serving(type("Pages", (_Pages,), {"reports": reports})) as url,
        started(f"{url}/{page}?task={query}") as (process, directory),
    ):
        yield Page(process, directory / "log", reports)


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A browser and its folder, with `profile` and `log`."""
    assert CHROMIUM is not None, "chromium is not installed (Debian: chromium)"
    # A browser that is killed may still be writing there.
    with tempfile.TemporaryDirectory(prefix="tidemark-browser-", ignore_cleanup_errors=True) as name:
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={name}/profile", *arguments]
        with Path(name, "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process, Path(name)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

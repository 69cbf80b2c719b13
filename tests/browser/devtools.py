"""Tabs of a headless Chromium, driven by the DevTools protocol: reloads, lost networks, slow networks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.browser.chromium import CHROMIUM, FLAGS
from tests.waiting import until


class Tab:
    """A page. Everything here blocks until Chromium has answered."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._sent = 0

    def command(self, method: str, **parameters: Any) -> Any:
        self._sent += 1
        self._socket.send(json.dumps({"id": self._sent, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv(60))).get("id") != self._sent:
            pass  # An event.
        assert "error" not in answer, answer
        return answer["result"]

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression; None while the page is loaded."""
        result = self.command("Runtime.evaluate", expression=expression, returnByValue=True)
        return result["result"].get("value")

    def reload(self) -> None:
        self.command("Page.reload")

    def network(self, *, offline: bool = False, bytes_per_second: int = -1) -> None:
        self.command("Network.enable")
        self.command(
            "Network.emulateNetworkConditions",
            offline=offline, latency=0, downloadThroughput=bytes_per_second, uploadThroughput=-1,
        )  # fmt: skip


class Browser:
    def __init__(self, host: str, path: str) -> None:
        self._host, self._path = host, path

    @contextmanager
    def tab(self, url: str) -> Iterator[Tab]:
        """A page in a window of its own: pages of hidden tabs stop to read."""
        with connect(f"ws://{self._host}{self._path}", ping_interval=None) as socket:
            target = Tab(socket).command("Target.createTarget", url=url, newWindow=True)["targetId"]
        page = f"ws://{self._host}/devtools/page/{target}"
        with connect(page, max_size=None, ping_interval=None) as socket:
            yield Tab(socket)


@contextmanager
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None, "chromium is not installed (Debian: chromium)"
    with tempfile.TemporaryDirectory(prefix="tidemark-browser-", ignore_cleanup_errors=True) as name:
        profile = Path(name, "profile")
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
        with Path(name, "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            port = profile / "DevToolsActivePort"
            until(lambda: port.exists() and port.read_text().count("\n") == 1)
            number, path = port.read_text().split()
            yield Browser(f"127.0.0.1:{number}", path)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

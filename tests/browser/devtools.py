"""Tabs of a headless Chromium, driven by the DevTools protocol: reloads, lost networks, slow networks."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.browser.chromium import started
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
    with started("--remote-debugging-port=0", "about:blank") as (_, directory):
        port = directory / "profile" / "DevToolsActivePort"
        until(lambda: port.exists() and port.read_text().count("\n") == 1)
        number, path = port.read_text().split()
        yield Browser(f"127.0.0.1:{number}", path)

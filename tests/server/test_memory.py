"""Large bodies do not add up in a server's memory, whether they are appended or refused."""

import asyncio
import gc
import http.client
import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from tests.conformance.servers import running, tidemark_server
from tests.garbage import uncollected
from tidemark.http.app import create_app
from tidemark.server.connections import COLLECT_AFTER_BYTES
from tidemark.server.http_server import serve
from tidemark.server.ports import LOOPBACK, listening_socket, port_of
from tidemark.server.system import EmbeddedSystem
from tidemark.settings import Settings

JSON, BYTES = {"Content-Type": "application/json"}, {"Content-Type": "application/octet-stream"}
BODIES = {
    "JSON": (JSON, b'["%s"]'),
    "bytes": (BYTES, b"%s"),
    "half JSON": (JSON, b'["%s'),
    "subscription": (JSON, b'{"type": "pull-wake", "streams": 7, "description": "%s"}'),
}
OTHER_TAIL = {"If-Match": '"other:0000000000000005"'}
GAP = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "7"}
#: By name: the method, what follows the stream's path, the headers, and the status.
REQUESTS = {
    "append": ("POST", "", {}, 204), "another tail": ("POST", "", OTHER_TAIL, 412),
    "another type": ("POST", "", {"Content-Type": "text/plain"}, 409), "a gap": ("POST", "", GAP, 409),
    "an encoding": ("POST", "", {"Content-Encoding": "gzip"}, 415), "absent": ("POST", "-absent", {}, 404),
    "closed": ("POST", "-closed", {}, 409), "create": ("PUT", "-more-{number}", {}, 201),
    "create another": ("PUT", "", {"Stream-TTL": "9"}, 409),
    "snapshot": ("PUT", "/snapshot/0000000000000000", {}, 204),
    "snapshot beyond": ("PUT", "/snapshot/0000000000009999", {}, 409),
    "read": ("GET", "-closed?offset=-1", {}, 200), "malformed": ("POST", "", {}, 400),
    "subscribe": ("PUT", "/v1/stream/__ds/subscriptions/a", {}, 400),
}  # fmt: skip
SENT = [
    *product(list(REQUESTS)[:-2], ["JSON", "bytes"]),
    ("malformed", "half JSON"),
    ("subscribe", "subscription"),
]
MEGABYTES_4 = 4 * 1024 * 1024


class Client:
    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
        self.close = self._connection.close

    def __call__(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> int:
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Of a server in this process."""
    system = EmbeddedSystem(Settings(), None, tmp_path_factory.mktemp("memory"))
    stopping, ready = asyncio.Event(), threading.Event()

    async def run() -> None:
        with system.database.serving():
            await serve(create_app(system.backend), listener, ready.set, stopping)

    with listening_socket(LOOPBACK, 0) as listener, asyncio.Runner() as runner:
        loop = runner.get_loop()
        thread = threading.Thread(target=runner.run, args=(run(),))
        thread.start()
        assert ready.wait(60)
        with closing(Client(port_of(listener))) as client:
            assert client("PUT", "/memory", {}) == 201
            yield client
        loop.call_soon_threadsafe(stopping.set)
        thread.join()


@pytest.mark.parametrize(("what", "kind"), SENT)
def test_no_large_body_is_left_to_the_garbage_collector(client: Client, what: str, kind: str) -> None:
    method, suffix, more, expected = REQUESTS[what]
    headers, form = BODIES[kind]
    path, body = f"/memory/{kind}-{what}".replace(" ", "-"), form % (b"x" * 300_000)
    client("PUT", path, headers)
    client("PUT", path + "-closed", headers | {"Stream-Closed": "true"}, body)
    with uncollected() as owners:
        for number in range(10):
            sent = b"" if method == "GET" else body
            target = suffix if suffix.startswith("/v1") else path + suffix.format(number=number)
            assert client(method, target, headers | more, sent) == expected
    assert owners == []


def test_large_bodies_count_toward_a_collection(client: Client) -> None:
    """Those of a cycle that nobody has broken yet."""

    class Holder:
        pass

    holder: list[object] = [Holder()]
    holder.append(holder)
    held = weakref.ref(holder[0])
    gc.disable()
    try:
        del holder
        for _ in range(COLLECT_AFTER_BYTES // MEGABYTES_4 + 1):
            assert client("POST", "/memory/absent", BYTES, bytes(MEGABYTES_4)) == 404
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system has no /proc")
@pytest.mark.parametrize(("kind", "what"), [("JSON", "append"), ("bytes", "another tail")])
def test_a_gigabyte_in_large_bodies_takes_less_than_a_quarter(tmp_path: Path, kind: str, what: str) -> None:
    method, _, more, expected = REQUESTS[what]
    headers, form = BODIES[kind]
    body = form % (b"x" * (MEGABYTES_4 - 16))
    with running(tidemark_server("asgi", tmp_path)) as server:
        with closing(Client(server.port)) as client:
            assert client("PUT", "/v1/stream/a", headers) == 201
            for _ in range(240):
                assert client(method, "/v1/stream/a", headers | more, body) == expected
        assert server.process is not None
        status = Path(f"/proc/{server.process.pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None
    assert int(peak[1]) < 250 * 1024

"""The whole system killed with -9 at random moments, engines and all, while writers write.

Producers go on after each restart and repeat what was not acknowledged. In the end each
of their appends is there once, in order; and of the writers that repeat nothing, every
append that was acknowledged. Some of these lie in S3.

Where each writer has a stream of its own, the appends of all share one write of the local engine's.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from pathlib import Path

import pytest

from tests.conformance.servers import Server, tidemark_server

PRODUCERS, PLAIN_WRITERS, KILLS = 6, 6, 3
#: More than goes into the table.
LARGE_BYTES = 70_000
PATIENCE_SECONDS = 120.0


class Writers:
    """Threads that append as fast as they are answered, across restarts of the server."""

    def __init__(self, port: int, streams: list[str]) -> None:
        self._port = port
        self._streams = streams
        self.stop = threading.Event()
        self.acknowledged: set[str] = set()
        self.appends = 0
        self.threads = [threading.Thread(target=self._produce, args=(number,)) for number in range(PRODUCERS)]
        self.threads += [
            threading.Thread(target=self._write, args=(number,)) for number in range(PLAIN_WRITERS)
        ]

    def _produce(self, number: int) -> None:
        """Sends each message until it is acknowledged, and only then the next."""
        seq = 0
        while not self.stop.is_set():
            message = f"producer-{number}-{seq}"
            headers = {"Producer-Id": f"p{number}", "Producer-Epoch": "0", "Producer-Seq": str(seq)}
            while self._post(self._path(number), message, headers) not in {200, 204}:
                time.sleep(0.05)
            self._acknowledge(message)
            seq += 1

    def _write(self, number: int) -> None:
        """Sends each message once: after a lost answer nobody knows."""
        count = 0
        while not self.stop.is_set():
            message = f"writer-{number}-{count}" + "." * (LARGE_BYTES if count % 10 == 9 else 0)
            if self._post(self._path(PRODUCERS + number), message, {}) == 204:
                self._acknowledge(message)
            else:
                time.sleep(0.05)
            count += 1

    def _path(self, number: int) -> str:
        return f"/v1/stream/{self._streams[number % len(self._streams)]}"

    def _acknowledge(self, message: str) -> None:
        self.acknowledged.add(message)
        self.appends += 1

    def _post(self, path: str, message: str, headers: dict[str, str]) -> int | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            body = json.dumps(message)
            connection.request("POST", path, body, {"Content-Type": "application/json"} | headers)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def wait_for_appends(self, more: int) -> None:
        wanted, deadline = self.appends + more, time.monotonic() + PATIENCE_SECONDS
        while self.appends < wanted:
            assert time.monotonic() < deadline, "the writers make no progress"
            time.sleep(0.01)


def read_stream(server: Server, name: str) -> list[str]:
    messages: list[str] = []
    offset, up_to_date = "-1", None
    while up_to_date is None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", f"/v1/stream/{name}?offset={offset}")
        answer = connection.getresponse()
        messages += json.loads(answer.read())
        offset, up_to_date = answer.headers["Stream-Next-Offset"], answer.headers["Stream-Up-To-Date"]
        connection.close()
    return messages


@pytest.mark.parametrize(("via", "streams"), [("asgi", 2), ("asgi", 12), ("lambda", 2)])
def test_acknowledged_appends_survive_a_kill(tmp_path: Path, via: str, streams: int) -> None:
    names = [f"s{number}" for number in range(streams)]
    server = tidemark_server(via, tmp_path, JANITOR_SECONDS="0")
    server.start()
    try:
        _create(server, *names)
        writers = Writers(server.port, names)
        for thread in writers.threads:
            thread.start()
        chance = random.Random(via)
        for _ in range(KILLS):
            writers.wait_for_appends(chance.randrange(30, 90))
            server.kill_group()
            server.start()
        writers.wait_for_appends(30)
        writers.stop.set()
        for thread in writers.threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
        _check([message for name in names for message in read_stream(server, name)], writers.acknowledged)
    finally:
        server.kill_group()


def _create(server: Server, *names: str) -> None:
    for name in names:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("PUT", f"/v1/stream/{name}", headers={"Content-Type": "application/json"})
        assert connection.getresponse().status == 201
        connection.close()


def _check(messages: list[str], acknowledged: set[str]) -> None:
    assert len(messages) == len(set(messages)), "nothing twice"
    assert acknowledged <= set(messages), "nothing lost"
    for number in range(PRODUCERS):
        prefix = f"producer-{number}-"
        sequence = [int(message.removeprefix(prefix)) for message in messages if message.startswith(prefix)]
        assert sequence == list(range(len(sequence))), "a producer's appends in order, without a gap"

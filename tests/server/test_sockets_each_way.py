"""`/v1/socket` of a running system, by each way: the server's own sockets, and API Gateway's in front of the
deployed functions, whose notifier the table's changes call. A client of the network sees the same."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.http.test_socket import tail
from tests.server import test_run
from tests.server.test_run import DEADLINE_SECONDS, TEXT, Start, System, starting_in
from tidemark.client import Stream
from tidemark.protocol.socket import Message, parse_messages

pytestmark = pytest.mark.slow

start, via = test_run.start, test_run.via


@pytest.fixture(scope="module")
def system(via: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with ExitStack() as stack:
        running = System(starting_in(tmp_path_factory.mktemp("sockets"), stack)(VIA=via))
        yield running
        assert running.end() == (0, "", "")


class OpenSocket:
    """Says frames, and is told messages, one by one."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._told: list[Message] = []
        #: By stream, without the lease.
        self._known: dict[str, Message] = {}

    def say(self, frame: Any) -> None:
        self._connection.send(json.dumps(frame))

    def watch(self, *names: str) -> list[Message]:
        self.say({"watch": names})
        return [self.told() for _ in names]

    def told(self) -> Message:
        """The next message that says something new: a wake-up may be late, and one of an append before the
        watch may still come."""
        while True:
            while not self._told:
                self._told = self.heard()
            message = self._told.pop(0)
            known = {name: value for name, value in message.items() if name != "seconds"}
            if "seconds" in message or known != self._known.get(message.get("stream", "")):
                self._known[message.get("stream", "")] = known
                return message

    def heard(self) -> list[Message]:
        """The messages of the next frame."""
        return parse_messages(self._connection.recv(timeout=DEADLINE_SECONDS))


@contextmanager
def open_socket(system: System) -> Iterator[OpenSocket]:
    """At the address that the system names."""
    status, body = system.request("GET", "/v1/socket")
    url = json.loads(body)["url"]
    assert (status, url) == (200, "/v1/socket")
    with connect(f"ws://{system.address}{url}", proxy=None) as connection:
        yield OpenSocket(connection)


def create(system: System, name: str) -> str:
    """The stream's path."""
    path = f"/v1/stream/{name}"
    assert system.request("PUT", path, b"one")[0] == 201
    return path


def append(system: System, path: str, **headers: str) -> None:
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    assert system.request("POST", path, b"two", TEXT | more)[0] == 204


def test_an_append_wakes_every_socket_that_watches_and_none_that_has_ceased_to(system: System) -> None:
    """One has unwatched the stream, another is gone, and holds up nobody. Functions take several messages at
    once, so that only the answer says that a watch is over."""
    path, other = create(system, "tides"), create(system, "other")
    with open_socket(system) as first, open_socket(system) as second, open_socket(system) as third:
        with open_socket(system) as gone:
            for each in (first, second, third, gone):
                assert each.watch(path) == [tail(path, 3, seconds=3600)]
        third.say({"unwatch": [path]})
        while third.heard():
            pass
        assert third.watch(other) == [tail(other, 3, seconds=3600)]
        for offset in (6, 9):
            append(system, path)
            assert [first.told(), second.told()] == [tail(path, offset)] * 2
        append(system, other)
        assert third.told() == tail(other, 6)


def test_the_python_client_reads_by_it_and_what_fits_no_frame_by_a_plain_get(system: System) -> None:
    path, asked = create(system, "python"), list[dict[str, str]]()
    hooks = {"request": [lambda request: asked.append(dict(request.url.params))]}
    with httpx.Client(event_hooks=hooks) as client:
        following = Stream(f"http://{system.address}{path}", client=client).follow(live="socket")
        assert next(following).text == "one"
        for _ in range(3):
            append(system, path)
            assert next(following).text == "two"
        large = "x" * 40_000
        Stream(f"http://{system.address}{path}").append(large)
        assert next(following).text == large
        append(system, path, Stream_Closed="true")
        assert [chunk.text for chunk in following] == ["two"]
    # The first append may come before the watch, whose answer then tells of it.
    reads = [each["offset"] for each in asked if each]
    assert reads in (["-1", f"{12:016}"], ["-1", f"{3:016}", f"{12:016}"])


def test_open_sockets_do_not_delay_the_end_and_watch_again_after_it(start: Start, via: str) -> None:
    """The client is told to come again (1012)."""
    first = System(start(VIA=via))
    path = create(first, "tides")
    with open_socket(first) as client, open_socket(first) as silent:
        client.watch(path)
        assert first.end() == (0, "", "")
        for each in (client, silent):
            with pytest.raises(ConnectionClosed) as closed:
                each.told()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
    second = System(start(VIA=via))
    append(second, path)
    with open_socket(second) as client:
        assert client.watch(path) == [tail(path, 6, seconds=3600)]
        append(second, path)
        assert client.told() == tail(path, 9)

"""A real caching proxy in front: it collapses the requests of readers at one offset, and serves nobody an
outdated response.

It is nginx, from Debian's packages, with its cache lock on. The origin is the live function's process.
"""

import http.client
import os
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import Request, urlopen

import pytest

from tests.conformance.servers import running as server_running
from tests.conformance.servers import tidemark_server
from tests.ports import free_port
from tests.programs import find, needs
from tests.support import TEXT, Process, World, a_key
from tests.waiting import PATIENCE_SECONDS, until
from tests.wake.live_process import running
from tests.wake.support import pumping
from tidemark.client import Stream
from tidemark.service.delete import delete

NGINX = find("nginx")
READERS = 200
ROUNDS = 5
#: At the origin, for what all the readers ask in a round.
HANDFUL = 6
TYPED = {"Content-Type": "text/plain"}
#: For a long-poll that gets nothing.
SHORT_SECONDS = 2
#: For rounds of many readers: a slow machine must not let a wait, and with it the proxy's lock, run out.
PATIENT_SECONDS = 25

pytestmark = [needs(NGINX, "nginx", "nginx-light"), pytest.mark.slow]

CONFIGURATION = """
daemon off;
{user}
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
events {{ worker_connections 2048; }}
http {{
    log_format fields '$status|$upstream_cache_status|$upstream_addr|$request_uri';
    access_log {directory}/access.log fields;
    client_body_temp_path {directory}/body;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    proxy_temp_path {directory}/proxy;
    proxy_cache_path {directory}/cache keys_zone=streams:10m;
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            proxy_pass http://127.0.0.1:{origin};
            proxy_http_version 1.1;
            proxy_read_timeout 60s;
            proxy_cache streams;
            # The path, and the offset, cursor and live of the query.
            proxy_cache_key $request_uri;
            proxy_cache_lock on;
            # As long as a long-poll lasts: after an empty one, which is not kept, each asks for itself.
            proxy_cache_lock_age {seconds}s;
            proxy_cache_lock_timeout {seconds}s;
        }}
        location /plain/ {{
            proxy_pass http://127.0.0.1:{origin}/;
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-Prefix /plain;
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Proxy:
    port: int
    log: Path

    def get(self, target: str) -> tuple[int, bytes, http.client.HTTPMessage]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)) as client:
            client.request("GET", target)
            response = client.getresponse()
            return response.status, response.read(), response.headers

    def at_origin(self, path: str) -> list[str]:
        """The requests for this stream that reached the origin."""
        lines = [line.split("|") for line in self.log.read_text().splitlines()]
        return [uri for _, _, upstream, uri in lines if upstream != "-" and uri.startswith(path)]


@contextmanager
def proxied(origin: int, directory: Path, seconds: int = SHORT_SECONDS) -> Iterator[Proxy]:
    port = free_port()
    configuration = directory / "nginx.conf"
    # Started by root it would become somebody who may not read this directory.
    given = {"port": port, "origin": origin, "seconds": seconds, "user": "user root;" * (os.geteuid() == 0)}
    configuration.write_text(CONFIGURATION.format(directory=directory, **given))
    assert NGINX is not None, "nginx is not installed (Debian: nginx-light)"
    process = subprocess.Popen([NGINX, "-p", directory, "-c", configuration, "-e", directory / "start.log"])
    proxy = Proxy(port, directory / "access.log")
    try:
        until(lambda: is_up(proxy))
        yield proxy
    finally:
        process.terminate()
        process.wait()


def is_up(proxy: Proxy) -> bool:
    try:
        return proxy.get("/v1/health")[0] == 200
    except OSError:
        return False


@dataclass
class Reader(threading.Thread):
    """Polls on from the offset and cursor that it gets, as the protocol says, until it has every message."""

    proxy: Proxy
    path: str
    expected: bytes
    got: bytes = b""
    answers: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        offset, cursor = "-1", ""
        while self.got != self.expected:
            status, body, headers = self.proxy.get(f"{self.path}?{cursor}live=long-poll&offset={offset}")
            self.answers[status] += 1
            assert status in {200, 204}
            offset, cursor = headers["Stream-Next-Offset"], f"cursor={headers['Stream-Cursor']}&"
            self.got += body
            assert self.expected.startswith(self.got), "a reader was served the wrong bytes"


def all_have(readers: list[Reader], data: bytes) -> bool:
    return all(reader.got == data for reader in readers)


@pytest.fixture(scope="module")
def proxy(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """In front of a function whose long-polls are short."""
    directory = tmp_path_factory.mktemp("proxy")
    with running(world, long_poll_seconds=SHORT_SECONDS) as origin, proxied(origin.port, directory) as made:
        yield made


def test_most_requests_of_two_hundred_readers_never_reach_the_origin(
    world: World, writer: Process, tmp_path: Path
) -> None:
    """Each reader gets every message, once and in order."""
    key = a_key("collapsed")
    writer.create(key, content_type=TEXT)
    messages = [b"message %d;" % number for number in range(ROUNDS)]
    path = f"/v1/stream/{key.stream_id}"
    with (
        running(world, long_poll_seconds=PATIENT_SECONDS) as origin,
        pumping(world, origin.queues._prefix),
        proxied(origin.port, tmp_path, PATIENT_SECONDS) as proxy,
    ):
        readers = [Reader(proxy, path, b"".join(messages)) for _ in range(READERS)]
        for reader in readers:
            reader.start()
        for number, message in enumerate(messages):
            writer.append(key, message, content_type=TEXT)
            until(partial(all_have, readers, b"".join(messages[: number + 1])))
        for reader in readers:
            reader.join(PATIENCE_SECONDS)
            assert reader.got == b"".join(messages)
        # The first request of each has no cursor yet, and data without one is not served unasked.
        requests, answers = len(proxy.at_origin(path)), sum((reader.answers for reader in readers), Counter())
        print(f"\n{answers} answers to {READERS} readers took {requests} requests at the origin")
        assert requests <= HANDFUL * ROUNDS + READERS + answers[204]
        assert answers[200] >= READERS


@pytest.mark.parametrize("place", ["", "/plain"], ids=["caching", "as installed"])
def test_an_event_passes_the_proxy_while_its_stream_goes_on(tmp_path: Path, place: str) -> None:
    """nginx would keep what it gets until a buffer is full or the response has ended: long after this
    client has given up."""
    path = "/v1/stream/events"
    server = tidemark_server("asgi", tmp_path, SSE_SECONDS="900")
    with server_running(server), proxied(server.port, tmp_path) as proxy:
        written = Stream.create(f"{server.base_url}{path}", content_type="text/plain")
        with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=PATIENCE_SECONDS)) as client:
            client.request("GET", f"{place}{path}?live=sse&offset=-1")
            response = client.getresponse()
            for number in range(3):
                written.append(b"message %d;" % number)
                assert b"data:message %d;\n" % number in iter(response.readline, b"")


def test_nothing_leads_out_of_the_path_below_which_a_proxy_serves(tmp_path: Path) -> None:
    """A stream's `Location`, the latest snapshot, and whatever the pages load and link."""
    server = tidemark_server("asgi", tmp_path)
    with server_running(server), proxied(server.port, tmp_path) as proxy:
        root = f"http://127.0.0.1:{proxy.port}/plain"
        for made, headers in (("/docs", {}), ("/docs/a", TYPED), ("/v1/stream/a/b", TYPED)):
            body = b"text" if headers else None
            with urlopen(Request(f"{root}{made}", body, headers, method="PUT")) as answer:
                assert answer.headers["Location"] == f"{root}{made}"
        urlopen(Request(f"{root}/docs/a/snapshot/{4:016}", b"whole", TYPED, method="PUT")).close()
        with urlopen(f"{root}/docs/a/snapshot") as answer:
            assert (answer.url, answer.read()) == (f"{root}/docs/a/snapshot/{4:016}", b"whole")
        for page in ("/", "/v1/console", "/v1/docs"):
            with urlopen(Request(f"{root}{page}", headers={"Accept": "text/html"})) as answer:
                links = re.findall(r'(?:href|src)="(?!http)([^"]+)"', answer.read().decode())
            assert len(links) > 3
            for link in links:
                with urlopen(urljoin(f"{root}{page}", link)) as answer:
                    assert answer.url.startswith(root)


def test_no_reader_gets_bytes_of_an_earlier_incarnation(proxy: Proxy, writer: Process) -> None:
    """The proxy still holds all of the deleted stream; the new stream has the same offsets."""
    key = a_key("again")
    path, cursor = f"/v1/stream/{key.stream_id}", ""
    for text in (b"old", b"new"):
        writer.create(key, content_type=TEXT, body=text)
        writer.append(key, b" more", content_type=TEXT)
        for live in ("", "&live=long-poll"):
            for _ in range(2):  # The second time from the proxy, where it has it.
                _, whole, headers = proxy.get(f"{path}?offset=-1{live}")
                cursor = f"&cursor={headers['Stream-Cursor']}{live}"
                assert whole == text + b" more"
                assert proxy.get(f"{path}?offset=0000000000000003{cursor}")[1] == b" more"
                assert proxy.get(f"{path}?offset=-1{cursor}")[1] == text + b" more"
        if text == b"old":
            at_origin = len(proxy.at_origin(path))
            assert proxy.get(f"{path}?offset=-1{cursor}")[1] == b"old more"
            assert len(proxy.at_origin(path)) == at_origin, "the proxy has it"
            delete(writer.stores, key)


def test_the_proxy_keeps_neither_a_404_nor_a_long_poll_without_data(proxy: Proxy, writer: Process) -> None:
    """They are true for a moment: after a creation or an append, the same URL returns the data."""
    key = a_key("stale")
    target = f"/v1/stream/{key.stream_id}?cursor=1&live=long-poll&offset=-1"
    assert proxy.get(target)[0] == 404
    writer.create(key, content_type=TEXT)
    assert proxy.get(target)[0] == 204
    writer.append(key, b"news", content_type=TEXT)
    for _ in range(3):
        assert proxy.get(target)[:2] == (200, b"news")

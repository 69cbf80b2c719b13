"""Streams that are written while a browser reads them."""

import http.client
import json
import random
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

TYPES: Final = {"json": "application/json", "text": "text/plain", "binary": "application/octet-stream"}
#: Between two appends: mostly none, so that some go out together.
_PAUSES: Final = (0.0, 0.0, 0.01, 0.05, 0.15)
#: Long enough for a server to come back.
_PATIENCE_SECONDS: Final = 60.0


def message(kind: str, number: int) -> bytes:
    """Of different lengths, and with characters of several bytes."""
    if kind == "json":
        return json.dumps({"n": number, "fill": "ü🌊" * (number % 4)}, ensure_ascii=False).encode()
    if kind == "text":
        return f"{number}:{'ü🌊' * (number % 4)}\n".encode()
    return bytes([number % 256, 0, 255]) * (1 + number % 5)


@dataclass
class Written:
    """A stream, the messages that it will have at its end, and where its server is."""

    port: int
    kind: str
    count: int

    def __post_init__(self) -> None:
        self.path = f"/v1/stream/browser-{self.kind}-{uuid.uuid4()}"
        self.messages = [message(self.kind, number) for number in range(self.count)]
        self._half_way = threading.Event()
        self._failures: list[BaseException] = []

    def create(self) -> None:
        assert self.send("PUT") == 201

    def send(self, method: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> int:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_SECONDS)
        with closing(client):
            client.request(method, self.path, body, {"Content-Type": TYPES[self.kind], **(headers or {})})
            with client.getresponse() as answer:
                answer.read()
                return answer.status

    def append(self, number: int) -> None:
        producer = {"Producer-Id": "writer", "Producer-Epoch": "0", "Producer-Seq": str(number)}
        self._post(self.messages[number], producer)

    def close(self) -> None:
        self._post(None, {"Stream-Closed": "true"})

    def _post(self, body: bytes | None, headers: Mapping[str, str]) -> None:
        """Once, however often it takes: the server may be killed meanwhile."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                status = self.send("POST", body, headers)
            except (OSError, http.client.HTTPException):
                assert time.monotonic() < deadline, "the server did not come back"
                time.sleep(0.05)
                continue
            assert status in {200, 204}
            return

    def write(self, seed: int) -> None:
        """One message after another, then the end."""
        chance = random.Random(seed)
        try:
            for number in range(self.count):
                if number == self.count // 2:
                    self._half_way.set()
                self.append(number)
                time.sleep(chance.choice(_PAUSES))
            self.close()
        except BaseException as failure:  # noqa: BLE001 - raised where the writing is waited for
            self._failures.append(failure)
            self._half_way.set()

    def until_half_way(self) -> None:
        assert self._half_way.wait(_PATIENCE_SECONDS)

    def check(self) -> None:
        for failure in self._failures:
            raise failure


@contextmanager
def writing(streams: Sequence[Written], seed: int) -> Iterator[None]:
    """They are created and written, each by a thread of its own, from here on; at the end they have been."""
    for stream in streams:
        stream.create()
    with being_written(streams, seed):
        yield


@contextmanager
def being_written(streams: Sequence[Written], seed: int) -> Iterator[None]:
    """The same of streams that are there already."""
    threads = [
        threading.Thread(target=stream.write, args=[seed + number], daemon=True)
        for number, stream in enumerate(streams)
    ]
    for thread in threads:
        thread.start()
    yield
    for thread, stream in zip(threads, streams, strict=True):
        thread.join(_PATIENCE_SECONDS)
        stream.check()

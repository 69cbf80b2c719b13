"""Publishing an upload of gigabytes may take longer than the gateway waits: a repeated request finds it
published."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.answers import Answer
from tests.authorization.ways import ROOT, Asgi
from tests.stack.gateway import Gateway
from tests.stack.template import load_template
from tests.support import World
from tidemark.blobs import compose
from tidemark.service.snapshots import MAX_ANSWER_BYTES

TEXT = {"Content-Type": "text/plain"}
FOLDED = b"x" * (MAX_ANSWER_BYTES + 1)
PATIENCE_SECONDS = 600.0
AT = f"{6:016d}"


@dataclass
class SlowS3:
    """A copy ends only once the test allows it."""

    allowed: threading.Event = field(default_factory=threading.Event)
    begun: int = 0
    finished: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    failure: BaseException | None = None

    def compose(self, *arguments: Any) -> None:
        self.begun += 1
        assert self.allowed.wait(PATIENCE_SECONDS)
        if self.failure is not None:
            raise self.failure
        compose(*arguments)
        self.finished.release()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowS3:
    slow = SlowS3()
    monkeypatch.setattr("tidemark.blobs.compose", slow.compose)
    return slow


@pytest.fixture
def impatient(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asgi]:
    """The HTTP API, which waits for a quarter of a second instead of thirty seconds."""
    monkeypatch.setenv("TABLE_NAME", world.table_name)
    monkeypatch.setenv("BUCKET_NAME", world.bucket_name)
    gateway = Gateway(load_template(ROOT / "template.yaml"), integration_seconds=0.25)
    with asyncio.Runner() as runner:
        yield Asgi(gateway, runner)
    gateway.close()


def until_answered(way: Asgi, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Answer:
    """Like a client that tries again, in case a slow machine makes the gateway give up on another request."""
    for _ in range(240):
        answer = way(method, path, headers, body)
        if answer.status != 503:
            return answer
    raise AssertionError("never answered")


def uploaded(way: Asgi, bucket: str) -> tuple[str, dict[str, str]]:
    """A snapshot's path, and the headers that publish its upload."""
    assert until_answered(way, "PUT", f"/{bucket}", {}).status in {201, 409}
    assert until_answered(way, "PUT", f"/{bucket}/run", TEXT, b"abcdef").status in {200, 201}
    place = f"/{bucket}/run/snapshot/{AT}"
    upload = json.loads(until_answered(way, "POST", f"{place}/upload", {}).body)
    put = urllib.request.Request(upload["url"], FOLDED, upload["headers"], method="PUT")
    with urllib.request.urlopen(put) as answer:
        assert answer.status == 200
    return place, {"Snapshot-Upload": upload["upload"], **TEXT}


def bootstrap_of(way: Asgi, bucket: str) -> bytes:
    answer = until_answered(way, "GET", f"/{bucket}/run/bootstrap", {})
    assert (answer.status, answer.headers["stream-snapshot-offset"]) == (307, AT)
    with urllib.request.urlopen(answer.headers["location"]) as composed:
        body: bytes = composed.read()
    return body


def check_published(way: Asgi, bucket: str, place: str, publish: dict[str, str]) -> None:
    answer = until_answered(way, "PUT", place, publish)
    assert (answer.status, answer.headers["stream-snapshot-offset"]) == (204, AT), answer
    assert FOLDED in bootstrap_of(way, bucket)


def test_a_publish_that_the_gateway_gave_up_on_ends_and_can_be_repeated(
    impatient: Asgi, slow: SlowS3
) -> None:
    """Each makes the same object, and a later one finds it published."""
    place, publish = uploaded(impatient, "slow-one")
    for _ in range(3):
        turned_away = impatient("PUT", place, publish)
        assert (turned_away.status, turned_away.body) == (503, b'{"message":"Service Unavailable"}')
    assert until_answered(impatient, "GET", "/slow-one/run/snapshot", {}).status == 404, "nothing by halves"
    slow.allowed.set()
    for _ in range(3):
        assert slow.finished.acquire(timeout=PATIENCE_SECONDS)
    check_published(impatient, "slow-one", place, publish)
    assert until_answered(impatient, "GET", "/slow-one/run?offset=-1", {}).status == 410
    assert slow.begun == 3, "what is published is not made again"


def test_a_publish_that_was_interrupted_can_be_repeated(
    impatient: Asgi, slow: SlowS3, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lambda ends a function after two minutes; the next request begins anew."""
    place, publish = uploaded(impatient, "slow-three")
    slow.failure = SystemExit("ended")
    slow.allowed.set()
    assert until_answered(impatient, "PUT", place, publish).status == 500
    assert until_answered(impatient, "GET", "/slow-three/run/snapshot", {}).status == 404
    assert until_answered(impatient, "GET", "/slow-three/run?offset=-1", {}).body == b"abcdef"
    slow.failure = None
    check_published(impatient, "slow-three", place, publish)

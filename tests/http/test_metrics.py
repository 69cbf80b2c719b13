"""The busiest streams of a process: what is counted, for how long, and where it is shown."""

import asyncio
import json
import os
from collections.abc import Iterator

import pytest

from tests.authorization.ways import Asgi, in_environment
from tests.stack.engines import LocalServices
from tests.support import MonotonicClock
from tidemark.http import metrics
from tidemark.http.app import create_app
from tidemark.http.backend import threaded_backend
from tidemark.http.metrics import StreamTraffic, Traffic
from tidemark.observability.metrics import OVERTAKEN, PROCESS, Meter
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.stores import connect
from tidemark.settings import Settings

A, B = StreamKey("v1", "a"), StreamKey("agents", "b")
TEXT = {"Content-Type": "text/plain"}


def test_the_busiest_stream_comes_first() -> None:
    counted = Traffic(MonotonicClock())
    counted.appended(A, 10)
    for _ in range(3):
        counted.read(B)
        counted.sent(B, 100)
    counted.sent(B, 1)
    found = counted.snapshot(10)
    assert found.streams == [(B, StreamTraffic(reads=3, read_bytes=301)), (A, StreamTraffic(1, 10))]
    assert [key for key, _ in counted.snapshot(1).streams] == [B]


def test_what_is_older_than_two_windows_does_not_count() -> None:
    clock = MonotonicClock()
    counted = Traffic(clock)
    counted.appended(A, 1)
    clock.now += metrics.WINDOW_SECONDS
    counted.appended(B, 1)
    found = counted.snapshot(10)
    assert (found.seconds, {key for key, _ in found.streams}) == (metrics.WINDOW_SECONDS, {A, B})
    clock.now += metrics.WINDOW_SECONDS + 5
    counted.appended(A, 7)
    found = counted.snapshot(10)
    assert found.seconds == metrics.WINDOW_SECONDS + 5
    assert dict(found.streams) == {A: StreamTraffic(1, 7), B: StreamTraffic(1, 1)}
    clock.now += 10 * metrics.WINDOW_SECONDS
    assert counted.snapshot(10).streams == []


def test_streams_beyond_the_limit_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_STREAMS", 2)
    counted = Traffic(MonotonicClock())
    for name in ("a", "b", "c", "d", "a"):
        counted.appended(StreamKey("v1", name), 1)
    found = counted.snapshot(10)
    assert {key.stream_id for key, _ in found.streams} == {"a", "b"}
    assert found.left_out == 2


def test_the_streams_that_were_written_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, also after the windows, until it is deleted."""
    monkeypatch.setattr(metrics, "MAX_WRITTEN", 3)
    clock = MonotonicClock()
    counted = Traffic(clock)
    for name in "abcdbd":
        counted.appended(StreamKey("v1", name), 1)
        clock.now += 10 * metrics.WINDOW_SECONDS
    written = [(key.stream_id, since / metrics.WINDOW_SECONDS) for key, since in counted.snapshot(10).written]
    assert written == [("d", 10), ("b", 20), ("c", 40)]
    del counted.written[StreamKey("v1", "b")]
    assert [key.stream_id for key, _ in counted.snapshot(2).written] == ["d", "c"]
    assert len(counted.snapshot(1).written) == 1


def test_the_last_hour_is_kept_by_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_SAMPLES", 3)
    clock, meter = MonotonicClock(), Meter()
    counted = Traffic(clock)
    rates = metrics.Rates(counted, meter, clock)
    for number in range(5):
        rates.sample()
        clock.now += 5
        meter.appended(10 * number)
        for status in (204, 404, 409, 409, 500):
            meter.answered("POST", status, 0.001)
        meter.add(OVERTAKEN)
        counted.read(A)
        counted.sent(A, 7)
    with meter.waiting("sse"):
        rates.sample()
    same = {"ms": 5000, "appends": 1, "reads": 1, "read_bytes": 7, "refused": 2, "failed": 1}
    moved = {"at_ms": [120_000, 125_000], "append_bytes": [30, 40], "waiting": [0, 1]}
    assert rates.lists() == moved | {name: [value] * 2 for name, value in same.items()}


@pytest.fixture
def environment(services: LocalServices) -> Iterator[None]:
    with in_environment(services):
        yield


def test_appends_and_reads_of_every_kind_are_counted_without_a_storage_call(environment: None) -> None:
    settings = Settings.from_environment(os.environ | {"LONG_POLL_SECONDS": "0", "SSE_SECONDS": "0"})
    with asyncio.Runner() as runner:
        backend = threaded_backend(connect(settings), settings)
        server = Asgi(create_app(backend, with_metrics=True), runner)
        path = "/v1/stream/traffic/counted"
        server("PUT", path, TEXT, b"a body")
        server("PUT", path, TEXT, b"a body")
        server("PUT", f"{path}/without-a-body", TEXT)
        server("POST", path, TEXT, b"twelve bytes")
        server("POST", path, TEXT | {"Stream-Seq": ""}, b"refused")
        server("POST", path, {"Content-Type": "application/json"}, b"{}")
        before = PROCESS.snapshot().counts.get((OVERTAKEN, ()), 0)
        producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "1"}
        server("POST", path, TEXT | producer, b"overtook the first")
        assert PROCESS.snapshot().counts[OVERTAKEN, ()] == before + 1
        server("GET", path)
        server("GET", f"{path}?offset=-1&live=long-poll")
        server("GET", f"{path}?offset=-1&live=sse")
        server("GET", "/v1/stream/traffic/nothing")
        answer = server("GET", "/v1/traffic")
        assert answer.timing.startswith("storage;dur=0.00")
        found = json.loads(answer.body)
        [counted] = [each for each in found["streams"] if each["stream_id"].startswith("traffic/")]
        assert counted.pop("read_bytes") > 24, "the event stream has bytes of its own"
        numbers = {"appends": 2, "append_bytes": 18, "reads": 3, "failures": 1}
        assert counted == {"bucket_id": "v1", "stream_id": "traffic/counted"} | numbers
        runner.run(backend.close())

"""What is counted, and where it is shown."""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.authorization.tokens import SECRET, bearer, token
from tests.authorization.ways import WAYS, Asgi, Way, in_environment
from tests.stack.engines import LocalServices
from tests.support import refusal
from tests.waiting import eventually
from tidemark.aws.http import BlockingHttp
from tidemark.http.app import create_app
from tidemark.http.backend import Backend, threaded_backend
from tidemark.http.metrics import render
from tidemark.observability.metrics import APPENDS, BOUNDS, STORAGE_CALLS, WAKE_SECONDS, Distribution, Meter
from tidemark.observability.report import REPORT_SECONDS, Reporter, reporting, spread
from tidemark.service.stores import connect
from tidemark.settings import Settings

TEXT = {"Content-Type": "text/plain"}


@pytest.fixture(scope="module")
def environment(services: LocalServices) -> Iterator[None]:
    with in_environment(services):
        yield


@pytest.fixture(scope="module", params=list(WAYS))
def way(request: pytest.FixtureRequest, environment: None) -> Iterator[Way]:
    with WAYS[request.param](Settings.from_environment(os.environ)) as opened:
        yield opened


@pytest.fixture
def backend(environment: None) -> Backend:
    settings = Settings.from_environment(os.environ | {"LONG_POLL_SECONDS": "600"})
    return threaded_backend(connect(settings), settings)


@pytest.fixture
def server(backend: Backend) -> Iterator[Asgi]:
    """The local one, that shows its numbers, and waits."""
    with asyncio.Runner() as runner:
        yield Asgi(create_app(backend, with_metrics=True), runner)
        runner.run(backend.close())


def numbers(server: Way) -> dict[str, float]:
    answer = server("GET", "/v1/metrics")
    assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line.rpartition(" ") for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {
        name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)
    }


def test_server_timing_says_how_long_a_request_and_its_storage_calls_took(way: Way) -> None:
    for method, path in (("PUT", "/v1/stream/timed"), ("GET", "/v1/stream/timed"), ("GET", "/v1/nothing")):
        found = re.fullmatch(r"storage;dur=([\d.]+), total;dur=([\d.]+)", way(method, path, TEXT).timing)
        assert found is not None
        storage, total = float(found[1]), float(found[2])
        assert 0 <= storage <= total + 0.01
        assert (storage > 0) == (path != "/v1/nothing")


def test_an_append_is_counted_with_its_bytes_and_its_storage_calls(server: Asgi) -> None:
    server("PUT", "/v1/stream/counted", TEXT)
    before = numbers(server)
    for _ in range(2):
        server("PUT", "/v1/stream/counted/from-the-start", TEXT, b"created")
    counted = grown(before, numbers(server))
    assert (counted["tidemark_appends_total"], counted["tidemark_append_bytes_total"]) == (1, 7)
    before = numbers(server)
    server("POST", "/v1/stream/counted", TEXT, b"x" * 100_000)
    server("POST", "/v1/stream/counted", {"Content-Type": "image/png"}, b"12345")
    counted = grown(before, numbers(server))
    assert counted["tidemark_appends_total"] == 1
    assert counted["tidemark_append_bytes_total"] == 100_000
    assert counted["tidemark_conflicts_total"] == 1
    assert counted['tidemark_requests_total{method="POST",status="204"}'] == 1
    assert counted['tidemark_requests_total{method="POST",status="409"}'] == 1
    assert counted['tidemark_storage_calls_total{operation="PutItem"}'] == 1
    assert counted['tidemark_storage_calls_total{operation="PutObject"}'] == 1


def test_retries_and_throttling_are_counted(server: Asgi, monkeypatch: pytest.MonkeyPatch) -> None:
    server("PUT", "/v1/stream/busy", TEXT)
    before = numbers(server)
    with monkeypatch.context() as patch:
        patch.setattr("tidemark.aws.retry.random.uniform", lambda *_: 0.0)
        patch.setattr(BlockingHttp, "__call__", lambda *_: refusal("ThrottlingException"))
        server("POST", "/v1/stream/busy", TEXT, b"x")
    counted = grown(before, numbers(server))
    assert counted["tidemark_throttled_total"] == 1
    assert (
        counted["tidemark_retries_total"] == counted['tidemark_storage_calls_total{operation="PutItem"}'] - 1
    )


def test_a_wait_and_its_wake_are_counted(server: Asgi, backend: Backend) -> None:
    server("PUT", "/v1/stream/awaited", TEXT)
    before = numbers(server)

    async def wait_and_append() -> None:
        waiting = asyncio.create_task(
            server.ask("GET", f"/v1/stream/awaited?offset={'0' * 16}&live=long-poll", {}, b"")
        )
        await eventually(lambda: backend.wake.hub.longest_wait_seconds(0.01))
        assert b"tidemark_waiting 1\n" in (await server.ask("GET", "/v1/metrics", {}, b"")).body
        await server.ask("POST", "/v1/stream/awaited", TEXT, b"x")
        assert (await waiting).body == b"x"

    server.run(wait_and_append())
    counted = grown(before, numbers(server))
    assert counted['tidemark_waits_total{kind="long-poll"}'] == 1
    assert counted["tidemark_wake_seconds_count"] == 1
    assert "tidemark_waiting" not in counted, "nobody waits any more"


@pytest.mark.parametrize("path", ["/v1/metrics", "/v1/rates", "/v1/traffic"])
def test_the_numbers_of_a_server_require_a_token_with_read_everywhere(environment: None, path: str) -> None:
    """A deployed function shows none: an environment is one of many."""
    variables = os.environ | {"ALLOW_ANONYMOUS": "", "AUTH_SECRET": SECRET}
    settings = Settings.from_environment(variables)
    with asyncio.Runner() as runner:
        backend = threaded_backend(connect(settings), settings)
        server = Asgi(create_app(backend, with_metrics=True), runner)
        for method in ("GET", "HEAD"):
            assert server(method, path).status == 401
            assert server(method, path, bearer("read:v1")).status == 404
            assert server(method, path, bearer("read:*")).status == 200
        runner.run(backend.close())
    with WAYS["HTTP API"](Settings.from_environment(os.environ)) as way:
        assert way("GET", path).status == 404


def test_metrics_are_in_the_prometheus_text_format() -> None:
    """Each family has its help and type, buckets grow and end at infinity."""
    meter = Meter()
    meter.appended(12_345_678_901)
    meter.add(STORAGE_CALLS, 2, ('a"b\\c',))
    for seconds in (0.0005, 0.001, 0.3, 99):
        meter.observe(WAKE_SECONDS, seconds)
    text = render(meter.snapshot())
    assert 'tidemark_storage_calls_total{operation="a\\"b\\\\c"} 2\n' in text
    assert "tidemark_append_bytes_total 12345678901\n" in text, "to the last byte"
    assert "tidemark_conflicts_total 0\n" in text
    buckets = [
        int(each) for each in re.findall(r"^tidemark_wake_seconds_bucket.* (\d+)$", text, re.MULTILINE)
    ]
    assert buckets == sorted(buckets)
    assert (buckets[0], buckets[-1]) == (2, 4)
    for family in set(re.findall(r"^(tidemark_\w+?)(?:_bucket|_sum|_count)?[ {]", text, re.MULTILINE)):
        assert f"# TYPE {family} " in text or f"# TYPE {family.removesuffix('_count')} " in text


def lines(captured: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in captured.splitlines()]


class Context:
    aws_request_id = "invocation-1"


def event(**more: Any) -> dict[str, Any]:
    request = {"requestId": "request-1", "http": {"method": "GET"}}
    path = {"rawPath": "/v1/stream/a", "rawQueryString": "access_token=secret"}
    return path | {"requestContext": request} | more


def test_a_function_reports_its_metrics_at_most_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    meter, now = Meter(), [100.0]
    reporter = Reporter("write", Settings(metrics_namespace="Tidemark/a-stack"), meter, lambda: now[0])
    for _ in range(3):
        meter.appended(10)
        meter.called("PutItem", 0.004)
        reporter.report()
    now[0] += REPORT_SECONDS
    reporter.report()
    now[0] += REPORT_SECONDS
    reporter.report()
    first, second = lines(capsys.readouterr().out)
    assert (first["Appends"], first["AppendBytes"], first["StorageCalls"]) == ([1.0], [10.0], [1.0])
    assert (second["Appends"], second["AppendBytes"]) == ([2.0], [20.0])
    assert second["StorageTime"] == [5.0, 5.0]
    assert first["service"] == "write"
    [described] = first["_aws"]["CloudWatchMetrics"]
    assert (described["Namespace"], described["Dimensions"]) == ("Tidemark/a-stack", [["service"]])


def test_a_request_with_429_or_5xx_has_a_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter("failing", Settings(), Meter())
    for status in (200, 404, 429, 500, 503):
        reporter.answered(event(), Context(), status)
    said = lines(capsys.readouterr().out)
    levels = [(line["level"], line["status"]) for line in said]
    assert levels == [("WARNING", 429), ("ERROR", 500), ("ERROR", 503)]
    for line in said:
        assert (line["request_id"], line["function_request_id"]) == ("request-1", "invocation-1")
        assert (line["method"], line["stream"], line["service"]) == ("GET", "/v1/stream/a", "failing")
        assert "secret" not in json.dumps(line)


def test_a_log_line_has_the_decoded_path_that_the_edge_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter("behind-the-edge", Settings(), Meter())
    for version in ("1", "2"):
        headers = {"x-tidemark-edge-version": version}
        reporter.answered(event(rawPath="/v1/stream/%~C3~A4~~2b~~7e", headers=headers), Context(), 500)
    told = [line["stream"] for line in lines(capsys.readouterr().out)]
    assert told == ["/v1/stream/%~C3~A4~~2b~~7e", "/v1/stream/%ä+~"]


def test_log_level_info_logs_every_request_without_its_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a request's words only method, path and ids: tokens and bodies stay out of it."""
    handler = reporting("all", Settings(log_level="INFO"), lambda *_: {"statusCode": 200})
    made = event(body="a body", headers={"authorization": f"Bearer {token('read:*')}"})
    assert handler(made, Context()) == {"statusCode": 200}
    [line] = [line for line in lines(capsys.readouterr().out) if "status" in line]
    assert line["level"] == "INFO"
    assert not any(secret in json.dumps(line) for secret in ("access_token", "a body", token("read:*")))


def test_a_histogram_is_reported_as_at_most_a_hundred_values_in_proportion() -> None:
    """Few enough for one metric, in the right proportions, and none is left out."""
    now, since = Distribution(), Distribution()
    for seconds, times in ((0.001, 10_000), (0.2, 1000), (40, 1)):
        for _ in range(times):
            now.observe(seconds)
    values = spread(now, since)
    assert len(values) <= 100
    assert (min(values), max(values)) == (1.0, BOUNDS[-1] * 2000)
    assert values.count(1.0) == pytest.approx(10 * values.count(200.0), rel=0.3)
    assert spread(now, now) == []


def test_threads_that_count_at_once_lose_no_count() -> None:
    meter = Meter()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: meter.add(APPENDS), range(8000)))
    assert meter.snapshot().counts[APPENDS, ()] == 8000

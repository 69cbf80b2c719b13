"""The spans that a collector receives from servers and functions, and silent and missing collectors."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Final

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from benchmarks.cpu import ENVIRONMENT
from tests.conformance.servers import ROOT, own_environment, running, tidemark_server
from tests.http_server import Handler, serving
from tests.stack.engines import LocalServices
from tests.support import make_world
from tests.waiting import PATIENCE_SECONDS, until
from tidemark.observability.metrics import Meter

pytestmark = pytest.mark.slow

TEXT: Final = {"Content-Type": "text/plain"}
STREAM: Final = "/v1/stream/{path}"
#: Longer than a test: without a limit of its own, nothing would end that waits for a collector.
AN_HOUR: Final = {"OTEL_EXPORTER_OTLP_TIMEOUT": "3600", "OTEL_BSP_SCHEDULE_DELAY": "3600000"}


def traceparent(trace: str) -> dict[str, str]:
    return {"traceparent": f"00-{trace * 32}-{trace * 16}-01", "tracestate": "vendor=1"}


@dataclass
class Collector:
    """Receives spans at `/v1/traces`; at other paths it is a webhook and an upstream."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    #: The headers of the last one, by path.
    requests: dict[str, Message] = field(default_factory=dict)

    def find(self, found: Callable[[Span], bool]) -> Span:
        until(lambda: any(map(found, self.spans)))
        return next(filter(found, self.spans))

    def below(self, parent: str) -> Span:
        return self.find(lambda span: span.parent_span_id.hex() == parent)


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()

    class Receives(Handler):
        def answer(self) -> None:
            collector.requests[self.path], body = self.headers, self.received()
            if self.path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.spans += [span for scope in resource.scope_spans for span in scope.spans]
            self.respond(200, b"{}", [("Content-Type", "application/json")])

    with serving(Receives) as collector.url:
        yield collector


@pytest.mark.parametrize("via", ["asgi", "lambda"])
def test_a_trace_goes_on_from_the_client_to_storage_readers_webhooks_and_upstreams(
    via: str, collector: Collector, tmp_path: Path
) -> None:
    exports = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    server = tidemark_server(via, tmp_path, PROXY_ALLOW=f"{collector.url}/upstream", **exports)
    hook = {"type": "webhook", "webhook": {"url": f"{collector.url}/hook"}, "streams": ["events/a"]}
    asked = {"Upstream-URL": f"{collector.url}/upstream", "Upstream-Method": "POST"} | traceparent("c")
    with running(server), httpx.Client(base_url=server.base_url, timeout=PATIENCE_SECONDS) as http:
        assert http.put("/v1/stream/events/a", headers=TEXT).status_code == 201
        assert http.put("/v1/stream/__ds/subscriptions/s", json=hook).status_code == 201
        live = "/v1/stream/events/a?offset=-1&live=sse"
        with http.stream("GET", live, headers=traceparent("a")) as events:
            lines = events.iter_lines()
            assert any("streamNextOffset" in line for line in lines)
            for number in range(10):  # An append before the reader waits wakes nobody.
                http.post("/v1/stream/events/a", headers=TEXT | traceparent("b"), content=b"%d." % number)
                assert any(f"{number}." in line for line in lines)
            append = collector.below("b" * 16)
            assert not any(span.parent_span_id.hex() == "a" * 16 for span in collector.spans)
        assert http.post("/v1/proxy", headers=asked, content=b"{}").status_code == 201
        assert http.get("/v1/stream/person?secret=1", headers=traceparent("d")).status_code == 404
        until(lambda: "/hook" in collector.requests)

    assert (append.name, append.trace_state) == (f"POST {STREAM}", "vendor=1")
    facts = {each.key: each.value.string_value or each.value.int_value for each in append.attributes}
    assert facts == {"http.request.method": "POST", "http.route": STREAM, "http.response.status_code": 204}
    assert collector.below(append.span_id.hex()).name == ("append" if via == "asgi" else "PutItem")

    reader = collector.below("a" * 16)
    assert reader.end_time_unix_nano > append.end_time_unix_nano, "it ends with its event stream"
    assert {event.name for event in reader.events} == {"woken"}
    call, sent = collector.below("c" * 16), collector.requests["/upstream"]
    assert sent["traceparent"].startswith(f"00-{'c' * 32}-{call.span_id.hex()}-")
    assert sent["tracestate"] == "vendor=1"
    _, _, sender, _ = collector.requests["/hook"]["traceparent"].split("-")
    delivery = collector.find(lambda span: span.span_id.hex() == sender)
    assert (delivery.name, delivery.parent_span_id) == ("POST webhook", b"")
    for woken in (reader, delivery):
        assert {link.trace_id.hex() for link in woken.links} == {"b" * 32}
    assert collector.below("d" * 16).name == f"GET {STREAM}"
    assert not any(word in str(collector.spans) for word in ("person", "secret", "events/a"))


FUNCTION = """
import json, sys
from benchmarks.cpu import Context, event_of, load_handler
write = load_handler("write")
answers = []
for name in ("put-create.json", "post-append.json"):
    event = event_of(name)
    event["headers"]["traceparent"] = "00-" + "b" * 32 + "-" + "c" * 16 + "-01"
    answers.append(write(event, Context())["statusCode"])
ours = ("opentelemetry", "tidemark.observability.tracing")
print(json.dumps([answers, [each for each in sys.modules if each.startswith(ours)]]))
"""


def call_function(services: LocalServices, **more: str) -> list[str]:
    """Create a stream and append to it. Return the modules imported for spans."""
    variables = own_environment() | ENVIRONMENT | services.environment | make_world(services).variables | more
    command = [sys.executable, "-c", FUNCTION]
    printed = subprocess.check_output(command, cwd=ROOT, env=variables, text=True, timeout=PATIENCE_SECONDS)
    statuses, modules = json.loads(printed.splitlines()[-1])
    assert statuses == [201, 204]
    return list(modules)


def test_a_functions_spans_are_sent_before_it_answers(services: LocalServices, collector: Collector) -> None:
    """The process ends after its answers, as if it was frozen, long before the SDK's own interval."""
    call_function(services, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, **AN_HOUR)
    append = collector.find(lambda span: span.name.startswith("POST /"))
    assert (append.trace_id.hex(), append.parent_span_id.hex()) == ("b" * 32, "c" * 16)


@pytest.mark.parametrize("exports", [True, False])
def test_a_collector_that_never_answers_stops_no_request_and_no_end(
    services: LocalServices, tmp_path: Path, exports: bool
) -> None:
    """Neither of a function nor of a server, which ends in time (`running`). Off, nothing is imported."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}" if exports else ""
        assert bool(call_function(services, OTEL_EXPORTER_OTLP_ENDPOINT=url, **AN_HOUR)) == exports
        made = tidemark_server("asgi", tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=url, **AN_HOUR)
        with running(made), httpx.Client(base_url=made.base_url, timeout=PATIENCE_SECONDS) as http:
            assert http.put("/v1/stream/a", headers=TEXT, content=b"x").status_code == 201
            assert made.process
            libraries = Path(f"/proc/{made.process.pid}/maps").read_text()
            assert ("google/_upb" in libraries) == exports, "protobuf is the exporter's"


def test_without_the_extra_a_warning_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "tidemark.observability.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    Meter().export_spans()
    assert caplog.messages == ["OTEL_EXPORTER_OTLP_ENDPOINT needs the extra otel"]

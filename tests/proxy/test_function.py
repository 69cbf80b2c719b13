"""The function of the durable proxy, which calls upstreams in invocations by itself."""

from pathlib import Path

import httpx

from tests.conformance.servers import running, tidemark_server
from tests.infra.test_edge import CONDITIONS, DEFAULTS, holds
from tests.infra.test_template import FUNCTIONS, TEMPLATE
from tests.proxy.conftest import Upstream, never_ends, says
from tests.waiting import until

TOO_LARGE = 700_000


def ask(url: str, upstream: Upstream, content: bytes, **headers: str) -> httpx.Response:
    sent = {"Upstream-URL": f"{upstream.url}/chat", "Upstream-Method": "POST", **headers}
    return httpx.post(f"{url}/v1/proxy", headers=sent, content=content, timeout=60)


def test_a_call_outlives_the_request_that_began_it(upstream: Upstream, tmp_path: Path) -> None:
    """Also with a body that no payload takes, which then lies in S3, and is removed. The key that a client
    sends, and the entry's own, are nowhere on the disk."""
    allowed = f"{upstream.url}/* key=env:MODEL_KEY"
    server = tidemark_server("lambda", tmp_path, PROXY_ALLOW=allowed, MODEL_KEY="marked-key")
    with running(server):
        upstream.behave = never_ends
        location = ask(server.base_url, upstream, b"small").headers["Location"]
        upstream.go_on.set()
        assert httpx.patch(f"{location}&action=abort").status_code == 204
        until(lambda: "Stream-Closed" in httpx.get(location).headers)
        assert '"upstreamError":"aborted"' in httpx.get(f"{location}&offset=-1&live=sse", timeout=60).text
        upstream.behave = says(b"whole")
        whole = ask(server.base_url, upstream, b"x" * TOO_LARGE).headers["Location"]
        until(lambda: httpx.get(whole).content == b"whole")
        assert [len(body) for *_, body in upstream.requests] == [5, TOO_LARGE]
        ask(server.base_url, upstream, b"", **{"Upstream-Authorization": "Bearer marked-client"})
        assert len(upstream.requests) == 3
        log = server.log_tail()
    files = [path for path in server.data_dir.rglob("*") if path.is_file()]
    assert not [path for path in files if b"marked" in path.read_bytes()]
    assert "marked" not in log
    assert not [path for path in files if path.parent.name == "proxy" and path.stat().st_size >= TOO_LARGE]


def test_a_call_is_never_tried_again() -> None:
    pipe = FUNCTIONS["PipeFunction"]
    assert pipe["EventInvokeConfig"] == {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60}
    assert pipe["Timeout"] > 840, "that of LIMITS in functions/proxy/app.py"


def test_questions_that_wait_leave_room_for_the_calls_that_they_wait_for() -> None:
    """Each function has a reservation, which is a limit too: neither takes an environment from writers."""
    proxy, pipe = FUNCTIONS["ProxyFunction"], FUNCTIONS["PipeFunction"]
    reserved = {"If": ["ReservesProxy", {"Ref": "ProxyConcurrency"}, {"Ref": "AWS::NoValue"}]}
    assert proxy["ReservedConcurrentExecutions"] == pipe["ReservedConcurrentExecutions"] == reserved
    assert proxy["Environment"]["Variables"]["PIPE_FUNCTION"] == {"Ref": "PipeFunction"}
    assert TEMPLATE["Resources"]["Setup"]["Properties"]["ProxyConcurrency"]["If"][0] == "ReservesProxy"
    assert holds(CONDITIONS["ReservesProxy"], DEFAULTS | {"ProxyAllow": "https://a.example/*"})
    assert not holds(CONDITIONS["ReservesProxy"], DEFAULTS), "without upstreams nothing waits"

"""What belongs to every response: browsers' security headers, CORS (§12.7), and errors that say what is wrong
without telling how the server is built."""

import logging
from typing import Any

import pytest

from tests.answers import Answer
from tests.http.asgi import READABLE, Door
from tidemark.http.headers import REQUEST_HEADERS

# The harness checks the headers of every answer in every test; here only what is not tried elsewhere.


def names(value: str | None) -> set[str]:
    return {name.strip() for name in (value or "").lower().split(",")}


@pytest.mark.parametrize(
    "place",
    ["/v1/stream/a/b%20c", "/v1/stream/a%2Fb", "/v1/health", "/v1/stream/__ds/subscriptions", "/none"],
)
def test_a_preflight_request_is_answered_without_a_storage_call(door: Door, place: str) -> None:
    """A browser sends it before a request with the protocol's headers."""
    door.process.calls.taken()
    asked = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": "content-type,producer-id,stream-seq",
    }
    answer = door("OPTIONS", place, asked)
    assert answer.status == 204
    assert names(answer["access-control-allow-methods"]) >= {"put", "post", "get", "head", "delete"}
    tracing = {"baggage", "cache-control", "sentry-trace", "traceparent", "tracestate", "*"}
    allowed = {"authorization", "content-type", *(each.name.lower() for each in REQUEST_HEADERS)}
    proxy = {"idempotency-key", "upstream-authorization", "upstream-method", "upstream-url"}
    assert names(answer["access-control-allow-headers"]) == allowed | tracing | proxy
    assert int(answer["access-control-max-age"] or 0) > 0
    assert answer["access-control-allow-credentials"] is None
    assert door.process.calls.taken() == {}


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_a_page_that_writes_may_read_headers_and_others_get_no_list_of_them(door: Door, method: str) -> None:
    """A browser sends `Origin` with each such request, from its own origin too (Fetch, section 3.2)."""
    for place in ("/v1/stream/listed", "/v1/stream/%00", "/nothing/here/at/all"):
        page = door(method, place, {"Content-Type": "text/plain", "Origin": "https://app.example"}, b"a")
        assert names(page["access-control-expose-headers"]) == READABLE
        other = door(method, place, {"Content-Type": "text/plain"}, b"a")
        assert other["access-control-expose-headers"] is None
        assert other["access-control-allow-origin"] == "*"


async def broken(*_: Any) -> Any:
    """Replaces every call to storage."""
    raise RuntimeError("the secret of how we are made")


REQUESTS = ["PUT", "POST", "GET", "GET ?offset=now", "GET ?offset=-1&live=sse", "HEAD", "DELETE"]
REQUESTS += ["GET ?offset=-1&live=long-poll"]


def ask(door: Door, path: str, request: str) -> Answer:
    method, _, query = request.partition(" ")
    if method in {"PUT", "POST"}:
        return door(method, path, {"Content-Type": "text/plain"}, b"x")
    return door(method, path + query)


def test_a_bug_is_500_and_its_traceback_is_only_in_the_log(
    door: Door, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The 500 has the form of every other error; those of storage are in `faults/test_table_fails.py`."""
    other = door.with_backend(run=broken, append=broken)
    for request in REQUESTS:
        caplog.clear()
        answer = ask(other, path, request)
        assert answer.status == 500
        assert b"secret" not in answer.body
        assert b"Traceback" not in answer.body
        assert any(record.levelno == logging.ERROR and record.exc_info for record in caplog.records)

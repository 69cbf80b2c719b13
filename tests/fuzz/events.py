"""Raw events, as an HTTP API and a function URL hand them to a function, with anything in them."""

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from hypothesis import strategies as st

from tests.answers import Answer
from tests.authorization.ways import FUNCTION_URL, TEMPLATE, Functions
from tests.fuzz.published import BODIES, NAMES, OFFSETS, TYPES
from tests.fuzz.subject import Subject, play
from tests.stack.events import HttpRequest, http_event
from tests.stack.template import match_route

METHODS: Final = ("GET", "GET", "HEAD", "PUT", "PUT", *["POST"] * 3, "DELETE", "OPTIONS", "PATCH", "X")
NUMBERS: Final = st.sampled_from(
    ["0", "1", "2", "-1", "007", "9007199254740991", "9007199254740992", "1e3", "٣", ""]
)
ANYTHING: Final = st.text(max_size=40)
HEADERS: Final[dict[str, st.SearchStrategy[str]]] = {
    "content-type": st.sampled_from(TYPES) | ANYTHING,
    "stream-closed": st.sampled_from(["true", "TRUE", "false", "", "true,true", " true"]) | ANYTHING,
    "stream-ttl": NUMBERS | ANYTHING,
    "stream-retain-seconds": NUMBERS | ANYTHING,
    "stream-retain-bytes": NUMBERS | ANYTHING,
    "stream-compact": st.sampled_from(["last-by-key", "last-by-key,last-by-key", ""]) | ANYTHING,
    "stream-compact-after": NUMBERS | ANYTHING,
    "stream-compact-tombstones": NUMBERS | ANYTHING,
    "stream-compact-key": st.sampled_from(["/id", "/a~1b/~0", "id", "/~2", "/", ""]) | ANYTHING,
    "stream-expires-at": st.sampled_from(["2030-01-15T12:00:00Z", "2030-01-15T12:00:00+23:59",
     "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-12:00", "2016-12-31T23:59:60Z", "9999-12-31T23:59:60Z",
     "2030-01-15T12:00:00." + "1" * 30 + "Z"]) | ANYTHING,
    "stream-forked-from": st.sampled_from([f"/v1/stream/{name}" for name in NAMES]) | ANYTHING,
    "stream-fork-offset": st.sampled_from(OFFSETS) | ANYTHING,
    "stream-fork-sub-offset": NUMBERS | ANYTHING,
    "stream-seq": st.sampled_from(["a,b", " a ", "a, a"]) | ANYTHING,
    "producer-id": st.sampled_from(["p", "q", "", "p,p", " p"]) | ANYTHING,
    "producer-epoch": NUMBERS,
    "producer-seq": NUMBERS,
    "if-match": st.sampled_from(["*", '"x"', 'W/"x", "y"', "x"]) | ANYTHING,
    "content-encoding": st.sampled_from(["gzip", "identity", ""]) | ANYTHING,
    "if-none-match": st.sampled_from(["*", '"x"', 'W/"x"']) | ANYTHING,
    "authorization": st.sampled_from(["Bearer x", "Bearer a.b.c"]) | ANYTHING,
    "x-forwarded-proto": ANYTHING,
    # Not `host`: a gateway is found by it, so it is always its own.
}  # fmt: skip
QUERY: Final = st.lists(
    st.tuples(
        st.sampled_from(["offset", "live", "cursor", "access_token"]) | ANYTHING,
        st.sampled_from([*OFFSETS, "long-poll", "sse", "1", "9" * 30]) | ANYTHING,
    ),
    max_size=4,
)
IN_BUCKETS: Final = ("", "/streams", "/a", "/a/snapshot", f"/a/snapshot/{'0' * 16}", "/a/bootstrap", "/é")
PATHS: Final = st.sampled_from(
    [f"/v1/stream/{name}" for name in NAMES] + [f"/agents{place}" for place in IN_BUCKETS]
) | st.one_of(ANYTHING.map(lambda text: f"/v1/stream/{text}"), ANYTHING.map(lambda text: f"/{text}"))


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any], str]:
    """Method, event, and the function that it is routed to by method alone."""
    method = draw(st.sampled_from(METHODS))
    chosen = draw(st.lists(st.sampled_from(sorted(HEADERS)), unique=True, max_size=7))
    headers = {name: draw(HEADERS[name]) for name in chosen}
    query = "&".join(f"{_loosely(name)}={_loosely(value)}" for name, value in draw(QUERY))
    body = draw(st.sampled_from(BODIES) | st.binary(max_size=200))
    path = draw(PATHS)
    event = make_event(method, path, query, headers, body)
    if draw(st.booleans()):
        event |= {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}
    if draw(st.integers(0, 3)) == 0:
        event = as_function_url(event, path)
    return method, event, "WriteFunction" if method in {"PUT", "POST", "DELETE"} else "ReadFunction"


def _loosely(text: str) -> str:
    """Encoded as clients do, more or less."""
    return quote(text, safe="%+/:é")


def make_event(method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    match = match_route(TEMPLATE.routes, method, "/v1/stream/x")
    request = HttpRequest(method, "/v1/stream/x", query, [], body, "203.0.113.7", 443)
    event = http_event(request, match, datetime.now(UTC))
    event["headers"] |= headers
    event["rawPath"] = event["requestContext"]["http"]["path"] = path
    return event


def as_function_url(event: dict[str, Any], path: str) -> dict[str, Any]:
    encoded = quote(path, safe="/%:@!$&'()*+,;=~")
    event |= {"rawPath": encoded, "routeKey": "$default"}
    event["requestContext"] |= {"domainName": FUNCTION_URL}
    return event


def append(functions: Functions, path: str, content_type: str, body: bytes) -> int:
    event = make_event("POST", path, "", {"content-type": content_type}, body)
    return functions.invoke("WriteFunction", as_function_url(event, path), "POST").status


def fuzz(subject: Subject, functions: Functions, count: int, first_seed: int) -> None:
    subject.append = partial(append, functions)

    def run(made: tuple[str, dict[str, Any], str]) -> None:
        method, event, function = made
        is_encoded = event["requestContext"]["domainName"] == FUNCTION_URL
        ask: Callable[[], Answer] = lambda: functions.invoke(function, event, method)  # noqa: E731 - as in published
        answer = subject.exchange(method, event["rawPath"], encoded=is_encoded, ask=ask)
        if answer.status >= 400 and method != "HEAD":
            assert answer.error

    for number in range(max(1, count // 200)):
        play(run, 200, first_seed + number, requests())

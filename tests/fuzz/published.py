"""Requests made by schemathesis from the document that the server publishes."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode

import httpx
import schemathesis
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tests.answers import Answer
from tests.authorization.ways import Way
from tests.fuzz.subject import Subject, play
from tidemark.http.openapi import HEADERS
from tidemark.http.requests import SUBSCRIPTION_ROOTS

CHECKS: Final = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
#: Few, so that requests meet each other's streams.
NAMES: Final = ("a", "b/c", "é", "with%20space")
BUCKETS: Final = ("agents", "agents", "team-1")
STREAMS: Final = ("a", "%C3%A9", "snapshot")
TYPES: Final = ("text/plain", "application/json", "image/png", "text/plain; charset=utf-8", "x", "")
BODIES: Final = (b"", b"[]", b"[1,2]", b"{}", b"x", b"{", b"\xff")
OFFSETS: Final = ("-1", "now", "0" * 16, f"{1:016d}", "9" * 16, "")


@dataclass(frozen=True, slots=True)
class Twist:
    """What a schema cannot know: names and values that mean something to streams that exist."""

    name: str | None
    bucket: str | None
    stream: str | None
    offset: str | None
    content_type: str | None
    body: bytes | None
    source: str | None


TWISTS: Final = st.builds(
    Twist,
    name=st.sampled_from([*NAMES, *NAMES, None]),
    bucket=st.sampled_from([*BUCKETS, *BUCKETS, None]),
    stream=st.sampled_from([*STREAMS, *STREAMS, None]),
    offset=st.sampled_from(OFFSETS) | st.none(),
    content_type=st.sampled_from(TYPES) | st.none(),
    body=st.sampled_from(BODIES) | st.none(),
    source=st.sampled_from(NAMES) | st.none(),
)


def fuzz(subject: Subject, way: Way, requests: int, first_seed: int) -> None:
    """About so many requests over all operations, twenty with each seed."""
    subject.append = lambda path, content_type, body: (
        way("POST", path, {"Content-Type": content_type}, body).status
    )
    document = json.loads(way("GET", "/v1/openapi.json").body)
    schema = schemathesis.openapi.from_dict(document)
    turns = _turns(schema)

    def run(case: Case, twist: Twist) -> None:
        send(subject, way, case, twist)

    for number in range(max(1, requests // 20)):
        # Of some operations there is nothing to get wrong.
        with suppress(Unsatisfiable):
            play(run, 20, first_seed + number, next(turns), TWISTS)


def _turns(schema: Any) -> Iterator[st.SearchStrategy[Case]]:
    operations = [found.ok() for found in schema.get_all_operations()]
    # The subject's model knows no subscriptions: tests/subscriptions plays them in any order.
    operations = [each for each in operations if not each.path.startswith(SUBSCRIPTION_ROOTS)]
    # A stream's operations, so that most of the time is theirs.
    streams = [each for each in operations if each.path.endswith(("{path}", "{stream}"))]
    writing = [each for each in streams if each.method in {"put", "post"}]
    buckets = [each for each in operations if each.path == "/{bucket}" and each.method == "put"]
    weighted = buckets + writing + streams + writing + operations
    strategies: list[st.SearchStrategy[Case]] = [
        each.as_strategy(generation_mode=mode)
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        for each in weighted
    ]
    while True:
        yield from strategies


def send(subject: Subject, way: Way, case: Case, twist: Twist) -> int:
    """The status."""
    method, target = case.method.upper(), target_of(case, twist)
    headers, body = headers_of(case, twist), body_of(case, twist)
    path = target.partition("?")[0]
    ask: Callable[[], Answer] = lambda: way(method, target, headers, body)  # noqa: E731 - a name for a parameter
    answer = subject.exchange(method, path, encoded=True, ask=ask)
    request = httpx.Request(method, f"http://streams.example{target}")
    response = httpx.Response(answer.status, headers=answer.headers, content=answer.body, request=request)
    response.elapsed, ours = timedelta(), set(map(str.lower, HEADERS))
    case.validate_response(response, checks=CHECKS)
    told = case.operation.definition.raw["responses"][str(answer.status)]["headers"]
    assert ours & answer.headers.keys() <= set(map(str.lower, told)), (method, target, answer.headers)
    return answer.status


def target_of(case: Case, twist: Twist) -> str:
    parameters = dict(case.path_parameters or {})
    path = case.path
    meant = {"path": twist.name, "stream": twist.stream, "bucket": twist.bucket, "at": twist.offset}
    for name, value in parameters.items():
        known = meant.get(name)
        text = known if known is not None else quote(str(value), safe="")
        path = path.replace(f"{{{name}}}", text)
    query = {name: _text(value) for name, value in dict(case.query or {}).items()}
    if twist.offset is not None and "offset" in query:
        query["offset"] = twist.offset
    return quote(path, safe="/%:@!$&'()*+,;=~") + (f"?{urlencode(query)}" if query else "")


def headers_of(case: Case, twist: Twist) -> dict[str, str]:
    """As a server would get them: what cannot be in a header has been refused before us."""
    headers = {str(name): _text(value) for name, value in dict(case.headers or {}).items()}
    if "Stream-Forked-From" in headers and twist.source is not None:
        headers["Stream-Forked-From"] = f"/v1/stream/{quote(twist.source, safe='/%')}"
    if twist.content_type is not None:
        headers["Content-Type"] = twist.content_type
    return {name: value for name, value in headers.items() if _may_be_sent(name, value)}


def _may_be_sent(name: str, value: str) -> bool:
    return name.isascii() and all("\x20" <= each <= "\xff" and each != "\x7f" for each in name + value)


def body_of(case: Case, twist: Twist) -> bytes:
    if case.method.upper() not in {"PUT", "POST"}:
        return b""
    if twist.body is not None:
        return twist.body
    body = case.body
    if isinstance(body, bytes):
        return body
    return json.dumps(body).encode() if isinstance(body, (str, int, float, bool, list, dict)) else b""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


#: What a server has before it is asked for all that can be read.
WRITES: Final = (
    ("PUT", "/agents", {"Stream-Retain-Bytes": "1000"}, b""),
    ("PUT", "/v1/stream/c", {"Content-Type": "application/json", "Stream-Compact": "last-by-key"}, b""),
    ("PUT", "/agents/a", {"Content-Type": "application/json"}, b'[{"id": 1}, {"id": 2}]'),
    ("PUT", "/agents/a/snapshot/" + "0" * 16, {"Content-Type": "application/json"}, b"{}"),
    ("PUT", "/v1/stream/a", {"Content-Type": "text/plain", "Stream-TTL": "3600"}, b"tide"),
    ("POST", "/v1/stream/a", {"Content-Type": "text/plain", "Stream-Closed": "true"}, b"s"),
    ("PUT", "/v1/stream/b", {"Stream-Forked-From": "/v1/stream/a", "Stream-Retain-Seconds": "60"}, b""),
    (
        "PUT",
        "/v1/stream/__ds/subscriptions/mailer",
        {"Content-Type": "application/json"},
        b'{"type": "pull-wake", "pattern": "**", "wake_stream": "b"}',
    ),
)
NAMED: Final = {"path": "a", "bucket": "agents", "stream": "a", "at": "0" * 16, "id": "mailer"}
ASKED: Final = {"offset": "0" * 16, "stream": "/v1/stream/a", "last": "1"}


def read_all(subject: Subject, way: Way) -> Iterator[tuple[str, int]]:
    """Each operation that reads, of a server with data: its answer is what the document says."""
    for method, target, headers, body in WRITES:
        assert way(method, target, headers, body).status < 300, target
    schema = schemathesis.openapi.from_dict(json.loads(way("GET", "/v1/openapi.json").body))
    found: Any
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.method in {"get", "head"}:
            query = {each.name: ASKED[each.name] for each in operation.query if each.name in ASKED}
            case = operation.Case(path_parameters=NAMED | {"file": "console.css"}, query=query)
            yield f"{operation.method} {operation.path}", send(subject, way, case, Twist(*[None] * 7))

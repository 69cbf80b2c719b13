"""The events have the form of AWS's in every detail, so a handler gets here what it gets there."""

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.stack import events
from tests.stack.emulators import ROOT
from tests.stack.template import Match, Route, load_template, match_route

NOW = datetime(2026, 3, 7, 9, 5, 2, 250_000, tzinfo=UTC)
MATCH = Match(Route("PUT", "/v1/stream/{proxy+}", "WriteFunction"), {"proxy": "tides"})
PLAIN = events.HttpRequest(
    method="PUT", path="/v1/stream/tides", query="", headers=[], body=b"", source_ip="192.0.2.7", port=4437
)


def event_of(match: Match = MATCH, **changes: Any) -> dict[str, Any]:
    return events.http_event(replace(PLAIN, **changes), match, NOW)


@pytest.mark.parametrize(
    ("sent", "raw_path"),
    [
        ("%C3%A9+b/", "é+b/"), ("%2541", "A"), ("a%252Fb", "a/b"), ("a%2525b", "a%b"), ("a%3Fb", "a"),
        ("a%253Fb", "a?b"), ("%FF", "\ufffd"),
    ],
)  # fmt: skip
def test_the_path_is_decoded_twice_and_cut_at_a_question_mark(sent: str, raw_path: str) -> None:
    """As captured from HTTP APIs (hotsock/voker, pull request 8). A function URL decodes nothing."""
    event = event_of(path=events.decode_path(f"/v1/stream/{sent}"))
    assert event["rawPath"] == event["requestContext"]["http"]["path"] == f"/v1/stream/{raw_path}"


@pytest.mark.parametrize("sent", ["/v1/stream/percent%25done", "/v1/stream/a%zz"])
def test_a_path_that_cannot_be_decoded_twice_is_refused_by_the_gateway(sent: str) -> None:
    with pytest.raises(events.UndecodablePath):
        events.decode_path(sent)


def test_headers_are_joined_and_cookies_and_those_of_the_connection_are_not_among_them() -> None:
    """A chunked body arrives whole, so its length is known and it is no longer chunked."""
    sent = [("x-a", "first"), ("accept", "*/*"), ("x-a", "second"), ("cookie", "a=1; b=2"), ("cookie", "c=3")]
    sent += [("transfer-encoding", "chunked"), ("connection", "keep-alive"), ("expect", "100-continue")]
    event = event_of(headers=[*sent, ("x-forwarded-for", "198.51.100.1")], body=b"abc")
    headers = event["headers"]
    assert event["cookies"] == ["a=1", "b=2", "c=3"]
    assert not {"cookie", "transfer-encoding", "connection", "expect"} & headers.keys()
    assert headers.pop("x-amzn-trace-id").startswith("Root=1-")
    assert headers == {
        "x-a": "first,second",
        "accept": "*/*",
        "content-length": "3",
        "x-forwarded-for": "198.51.100.1, 192.0.2.7",
        "x-forwarded-port": "4437",
        "x-forwarded-proto": "http",
    }


TEXT = "text: é".encode()


@pytest.mark.parametrize(
    ("content_type", "body", "is_text"),
    [
        ("text/event-stream; charset=utf-8", TEXT, True),
        ("Application/JSON; charset=utf-8", TEXT, True),
        ("application/json", b"\xff\xfe", False),
        ("application/ndjson", TEXT, False),
        (None, TEXT, False),
    ],
)
def test_a_body_is_text_only_for_a_few_content_types(
    content_type: str | None, body: bytes, is_text: bool
) -> None:
    """Every other body, and one that is not UTF-8 or is encoded, is base64; a handler must accept both."""
    headers = [("content-type", content_type)] if content_type else []
    event = event_of(headers=headers, body=body)
    assert event["isBase64Encoded"] is not is_text
    assert event["body"] == (body.decode() if is_text else base64.b64encode(body).decode())
    assert event_of(headers=[*headers, ("content-encoding", "gzip")], body=body)["isBase64Encoded"]


ROUTES = load_template(ROOT / "template.yaml").routes
#: Of the HTTP API; a function URL, a schedule, a socket and a table's stream have events of their own.
SAMPLES = [
    path
    for path in sorted((ROOT / "events").glob("*.json"))
    if "execute-api" in (text := path.read_text()) and '"http"' in text
]
VOLATILE_HEADERS = {"x-amzn-trace-id", "x-forwarded-for", "x-forwarded-port", "x-forwarded-proto"}
VOLATILE_CONTEXT = ("apiId", "domainName", "domainPrefix", "requestId", "time", "timeEpoch")


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_the_sample_events_are_those_that_the_gateway_makes(path: Path) -> None:
    """Other tests give these samples to the handlers, so samples and gateway stay the same."""
    sample = json.loads(path.read_text())
    request = events.HttpRequest(
        method=sample["requestContext"]["http"]["method"],
        path=sample["rawPath"],
        query=sample["rawQueryString"],
        headers=[item for item in sample["headers"].items() if item[0] not in VOLATILE_HEADERS],
        body=_body_of(sample),
        source_ip=sample["requestContext"]["http"]["sourceIp"],
        port=443,
    )
    match = match_route(ROUTES, request.method, request.path)
    assert _without_volatile(events.http_event(request, match, NOW)) == _without_volatile(sample)


def _body_of(sample: dict[str, Any]) -> bytes:
    body = sample.get("body", "")
    return base64.b64decode(body) if sample["isBase64Encoded"] else body.encode()


def _without_volatile(event: dict[str, Any]) -> dict[str, Any]:
    context = {**event["requestContext"], **dict.fromkeys(VOLATILE_CONTEXT, "…")}
    headers = {**event["headers"], **dict.fromkeys(VOLATILE_HEADERS, "…")}
    return {**event, "requestContext": context, "headers": headers}


def test_message_event_is_the_sample() -> None:
    """Its ids are new ones, in API Gateway's form; the request has one under two names."""
    sample = json.loads((ROOT / "events/socket-message.json").read_text())
    context = sample["requestContext"]
    at = [datetime.fromtimestamp(context[name] / 1000, UTC) for name in ("connectedAt", "requestTimeEpoch")]
    sent_by = [context["identity"][name] for name in ("sourceIp", "userAgent")]
    client = events.SocketClient(context["connectionId"], at[0], context["domainName"], *sent_by)
    made = events.message_event(client, sample["body"], at[1])
    new = {name: made["requestContext"][name] for name in ("requestId", "extendedRequestId", "messageId")}
    assert {len(each) for each in new.values()} == {len(context["requestId"])}
    assert new["requestId"] == new["extendedRequestId"] != new["messageId"]
    assert made == {**sample, "requestContext": context | new | {"apiId": "local"}}

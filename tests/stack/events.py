"""The events AWS sends: an HTTP API's (payload format 2.0), a WebSocket API's and a schedule's.

Where AWS's documentation is silent, this follows what was observed of API Gateway: the path is decoded twice,
headers that come twice are joined by a bare comma, and a body is text only under a few content types.
"""

import base64
import re
import secrets
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from tests.stack.template import Match

ACCOUNT_ID: Final = "123456789012"
API_ID: Final = "local"
STAGE: Final = "$default"
#: A body of these content types is text. Every other type, form data too, or no type makes it binary.
TEXT_TYPES: Final = frozenset({"application/json", "application/xml", "application/javascript"})
#: The gateway does not pass on these headers: they belong to one connection.
HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "proxy-connection", "te", "trailer"}) | {
    *("transfer-encoding", "upgrade", "expect")
}

#: An event has a field of its own for cookies.
LEFT_OUT: Final = HOP_BY_HOP | {"cookie"}

_BARE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")

Headers = Sequence[tuple[str, str]]
Event = dict[str, Any]


class UndecodablePath(ValueError):
    """An HTTP API answers 400 to such a path itself."""


def decode_path(path: str) -> str:
    """A path as an HTTP API hands it on, captured from real ones (github.com/hotsock/voker, pull
    request 8): decoded, cut at a question mark that appeared, decoded once more. Raises UndecodablePath."""
    cut = _decoded(path).partition("?")[0]
    return _decoded(cut)


def _decoded(path: str) -> str:
    if _BARE_PERCENT.search(path):
        raise UndecodablePath(path)
    return unquote(path)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request as an HTTP API takes it: `path` decoded, `query` percent-encoded; header names in lower
    case."""

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes
    source_ip: str
    port: int
    protocol: str = "HTTP/1.1"


def http_event(request: HttpRequest, match: Match, now: datetime) -> Event:
    """`now` is aware. A key that AWS leaves out when it has no value is left out here."""
    cookies = [
        cookie.strip() for name, value in request.headers if name == "cookie" for cookie in value.split(";")
    ]
    event: Event = {
        "version": "2.0",
        "routeKey": match.route.key,
        "rawPath": request.path,
        "rawQueryString": request.query,
        "cookies": [cookie for cookie in cookies if cookie],
        "headers": _headers(request, now),
        "queryStringParameters": _joined(parse_qsl(request.query, keep_blank_values=True)),
        "requestContext": _context(request, match, now),
        "pathParameters": dict(match.path_parameters),
        **_body(request),
    }
    optional = ("cookies", "queryStringParameters", "pathParameters")
    return {name: value for name, value in event.items() if value or name not in optional}


@dataclass(frozen=True, slots=True)
class SocketClient:
    """The client of a WebSocket connection. `connected_at` is aware."""

    connection_id: str
    connected_at: datetime
    host: str
    source_ip: str
    user_agent: str


def message_event(client: SocketClient, body: str, now: datetime) -> Event:
    """A text frame, as the default route hands it on: captured from real ones (Powertools for AWS Lambda,
    `apiGatewayWebSocketApiMessage.json`). No header of the handshake is in it."""
    request_id = make_id()
    identity = {"userAgent": client.user_agent, "sourceIp": client.source_ip}
    context = {
        "routeKey": "$default",
        "messageId": make_id(),
        "eventType": "MESSAGE",
        "extendedRequestId": request_id,
        "requestTime": _time(now),
        "messageDirection": "IN",
        "stage": STAGE,
        "connectedAt": _epoch_ms(client.connected_at),
        "requestTimeEpoch": _epoch_ms(now),
        "identity": {name: value for name, value in identity.items() if value},
        "requestId": request_id,
        "domainName": client.host,
        "connectionId": client.connection_id,
        "apiId": API_ID,
    }
    return {"requestContext": context, "body": body, "isBase64Encoded": False}


def make_id() -> str:
    """An id of a connection, message or request, in API Gateway's form: `L0SM9cOFvHcCIhw=`."""
    return base64.urlsafe_b64encode(secrets.token_bytes(11)).decode()


def _time(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")


def _epoch_ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def schedule_event(rule: str, region: str, now: datetime) -> Event:
    """The event of a schedule, as EventBridge sends it."""
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": ACCOUNT_ID,
        "time": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": region,
        "resources": [f"arn:aws:events:{region}:{ACCOUNT_ID}:rule/{rule}"],
        "detail": {},
    }


def _headers(request: HttpRequest, now: datetime) -> dict[str, str]:
    """The cookies have a place of their own. The gateway's own headers are added last."""
    joined = _joined((name, value) for name, value in request.headers if name not in LEFT_OUT)
    forwarded = joined.get("x-forwarded-for")
    return joined | {
        "content-length": str(len(request.body)),
        "x-amzn-trace-id": f"Root=1-{int(now.timestamp()):08x}-{secrets.token_hex(12)}",
        "x-forwarded-for": f"{forwarded}, {request.source_ip}" if forwarded else request.source_ip,
        "x-forwarded-port": str(request.port),
        "x-forwarded-proto": "http",
    }


def _joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The values of a name that comes twice, with a bare comma between them."""
    joined: dict[str, str] = {}
    for name, value in pairs:
        joined[name] = f"{joined[name]},{value}" if name in joined else value
    return joined


def _context(request: HttpRequest, match: Match, now: datetime) -> dict[str, Any]:
    host = domain_of(request.headers)
    return {
        "accountId": ACCOUNT_ID,
        "apiId": API_ID,
        "domainName": host,
        "domainPrefix": host.split(".", 1)[0],
        "http": {
            "method": request.method,
            "path": request.path,
            "protocol": request.protocol,
            "sourceIp": request.source_ip,
            "userAgent": _first(request.headers, "user-agent"),
        },
        "requestId": make_id(),
        "routeKey": match.route.key,
        "stage": STAGE,
        "time": _time(now),
        "timeEpoch": _epoch_ms(now),
    }


def domain_of(headers: Headers) -> str:
    """The domain that the client has reached, without the port."""
    return _first(headers, "host").rsplit(":", 1)[0] or "localhost"


def _body(request: HttpRequest) -> dict[str, Any]:
    if not request.body:
        return {"isBase64Encoded": False}
    encoding = _first(request.headers, "content-encoding")
    content_type = _first(request.headers, "content-type").split(";", 1)[0].strip().lower()
    is_text = content_type.startswith("text/") or content_type in TEXT_TYPES
    if is_text and encoding in ("", "identity"):
        try:
            return {"body": request.body.decode(), "isBase64Encoded": False}
        except UnicodeDecodeError:
            pass
    return {"body": base64.b64encode(request.body).decode(), "isBase64Encoded": True}


def _first(headers: Headers, wanted: str) -> str:
    return next((value for name, value in headers if name == wanted), "")

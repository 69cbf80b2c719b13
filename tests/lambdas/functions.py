"""The deployed handlers, loaded from their files and called as Lambda calls them."""

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from benchmarks.cpu import load_handler
from tests.answers import Answer, shown
from tests.http.asgi import check_any_answer, without_timing

ROOT: Final = Path(__file__).parents[2]
EVENTS: Final = ROOT / "events"
#: What Lambda takes as an answer, in bytes of JSON.
MAX_ANSWER_BYTES: Final = 6 * 1024 * 1024 + 100
#: Which function a method is routed to.
WRITES: Final = frozenset({"PUT", "POST", "DELETE"})

Event = dict[str, Any]
Handler = Callable[[Event, Any], Any]


def load_event(name: str) -> Event:
    event: Event = json.loads((EVENTS / f"{name}.json").read_text())
    return event


@dataclass(frozen=True, slots=True)
class Context:
    remaining_ms: int = 30_000

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms


@dataclass(slots=True)
class Functions:
    """`write`, `read` and `janitor` in one environment: a thread with an event loop of its own."""

    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    handlers: dict[str, Handler] = field(default_factory=dict)

    def start(self) -> None:
        self._thread.submit(asyncio.set_event_loop, self._loop).result()
        for name in ("write", "read", "janitor"):
            self.handlers[name] = self.load(name)

    def load(self, name: str) -> Handler:
        """Another environment with the same functions, with the settings of the environment variables now."""
        return self._thread.submit(load_handler, name).result()

    def stop(self) -> None:
        self._thread.shutdown()
        self._loop.close()

    def invoke(self, function: str, event: Event, context: Context | None = None) -> Any:
        """Passes event and result as JSON, the only form in which Lambda passes them."""
        event = json.loads(json.dumps(event))
        handler = self.handlers[function]
        answer = self._thread.submit(handler, event, context or Context()).result()
        wire = json.dumps(answer)
        assert len(wire) <= MAX_ANSWER_BYTES, f"Lambda refuses an answer of {len(wire)} bytes"
        return json.loads(wire)

    def raw(self, event: Event) -> dict[str, Any]:
        """The result of the function to which an HTTP event is routed."""
        method = event["requestContext"]["http"]["method"]
        answer: dict[str, Any] = self.invoke("write" if method in WRITES else "read", event)
        return answer

    def __call__(self, event: Event) -> Answer:
        """The response that a client gets from the gateway."""
        sent = event["requestContext"]["http"]
        answer = shown(sent["method"], sent["path"], event, b"", decode_answer(self.raw(event)))
        check_any_answer(sent["method"], answer)
        return answer


def decode_answer(answer: Mapping[str, Any]) -> Answer:
    assert answer.keys() <= {"statusCode", "headers", "body", "isBase64Encoded", "cookies"}
    assert isinstance(answer["statusCode"], int)
    headers = answer["headers"]
    assert all(isinstance(value, str) and name == name.lower() for name, value in headers.items())
    body = answer.get("body", "")
    decoded = base64.b64decode(body, validate=True) if answer["isBase64Encoded"] else body.encode()
    return Answer(answer["statusCode"], without_timing(headers), decoded)


def http_event(
    method: str, path: str, query: str = "", headers: Mapping[str, str] | None = None, body: bytes = b""
) -> Event:
    """The event that an HTTP API makes of a request; `path` is as a client encodes it, the event's path is
    not."""
    event = load_event("get-catch-up")
    decoded, is_write = unquote(path), method in {"PUT", "POST", "DELETE"}
    route = f"{method} /{{proxy+}}" if is_write else "$default"
    event |= {"routeKey": route, "rawPath": decoded, "rawQueryString": query}
    event["headers"] |= {name.lower(): value for name, value in (headers or {}).items()}
    event["headers"]["content-length"] = str(len(body))
    event["requestContext"]["routeKey"] = route
    event["requestContext"]["http"] |= {"method": method, "path": decoded}
    if is_write:
        event["pathParameters"] = {"proxy": decoded.removeprefix("/")}
    event.pop("queryStringParameters", None)
    if query:
        event["queryStringParameters"] = dict(pair.partition("=")[::2] for pair in query.split("&"))
    return event | _body(body)


def _body(body: bytes) -> Event:
    """Text as text, other bytes as base64."""
    if not body:
        return {"isBase64Encoded": False}
    try:
        return {"body": body.decode(), "isBase64Encoded": False}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}


def in_base64(event: Event) -> Event:
    """The same event, as a gateway sends a body whose type it does not treat as text."""
    body = event["body"].encode()
    return event | {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}


def function_url_event(event: Event) -> Event:
    """The same request at a function URL, which passes the path on as the client sent it."""
    event = deepcopy(event)
    domain = "abcdefghijklmnopqrstuvwxyz012345.lambda-url.eu-west-1.on.aws"
    encoded = quote(event["rawPath"], safe="/:@!$&'()*+,;=~")
    event |= {"rawPath": encoded, "routeKey": "$default"}
    event["headers"]["host"] = domain
    event["requestContext"] |= {
        "domainName": domain,
        "domainPrefix": domain.partition(".")[0],
        "routeKey": "$default",
    }
    event["requestContext"]["http"]["path"] = encoded
    event.pop("pathParameters", None)
    return event

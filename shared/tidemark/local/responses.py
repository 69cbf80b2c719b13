"""A function's response (payload format 2.0) as an HTTP response, as API Gateway reads it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tidemark.local.events import HOP_BY_HOP

BODILESS: Final = frozenset({204, 304})
DEFAULT_CONTENT_TYPE: Final = "text/plain; charset=utf-8"


class MalformedResponse(ValueError):
    """API Gateway would respond with 500 instead; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""


def gateway_response(status: int, message: str) -> HttpResponse:
    """A response of the gateway itself."""
    body = json.dumps({"message": message}, separators=(",", ":")).encode()
    return HttpResponse(
        status, (("content-type", "application/json"), ("content-length", str(len(body)))), body
    )


def read_response(response: Any, method: str) -> HttpResponse:
    """`response` is the parsed JSON that the function returned. Raises MalformedResponse."""
    if not isinstance(response, dict) or "statusCode" not in response:
        # The function returned its content alone.
        json_headers = {"content-type": "application/json"}
        response = {
            "statusCode": 200,
            "headers": json_headers,
            "body": json.dumps(response, ensure_ascii=False),
        }
    status = _status(response["statusCode"])
    body = b"" if status in BODILESS else _body(response)
    headers = _headers(response)
    if body and not any(name == "content-type" for name, _ in headers):
        headers.append(("content-type", DEFAULT_CONTENT_TYPE))
    length = _content_length(status, method, headers, body)
    kept = [(name, value) for name, value in headers if name != "content-length"]
    return HttpResponse(status, (*kept, *length), body)


def for_method(response: HttpResponse, method: str) -> HttpResponse:
    """The response to HEAD has no body, whether the function or the gateway gives it."""
    return replace(response, body=b"") if method == "HEAD" else response


def _status(value: Any) -> int:
    status = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if not isinstance(status, int) or isinstance(status, bool) or not 200 <= status <= 599:
        raise MalformedResponse(f"statusCode is {value!r}")
    return status


def _body(response: Mapping[str, Any]) -> bytes:
    body = response.get("body")
    if body is None:
        return b""
    if not isinstance(body, str):
        raise MalformedResponse(f"body is a {type(body).__name__}, not a string")
    if response.get("isBase64Encoded") is not True:
        return body.encode()
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedResponse(f"body is not base64: {error}") from error


def _headers(response: Mapping[str, Any]) -> list[tuple[str, str]]:
    headers, cookies = response.get("headers") or {}, response.get("cookies") or []
    if not isinstance(headers, dict) or not isinstance(cookies, list):
        raise MalformedResponse("headers must be an object and cookies a list")
    pairs = [(name.lower(), _header_value(value)) for name, value in headers.items()]
    pairs += [("set-cookie", _header_value(cookie)) for cookie in cookies]
    return [(name, value) for name, value in pairs if name not in HOP_BY_HOP]


def _header_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (str, int, float)):
        raise MalformedResponse(f"a header's value is a {type(value).__name__}")
    text = str(value)
    if any(character in "\r\n\0" or ord(character) > 255 for character in text):
        raise MalformedResponse(f"{text!r} cannot be a header's value")
    return text


def _content_length(
    status: int, method: str, headers: list[tuple[str, str]], body: bytes
) -> tuple[tuple[str, str], ...]:
    """The gateway counts for itself, except for HEAD, where only the function knows the length.

    Here we part from AWS: an event stream leaves without a length, as the protocol wants it
    (§5.8), although a real HTTP API counts that too. Deployed, the edge sends event streams
    to the streaming function instead (`docs/live.md`).
    """
    if status in BODILESS or ("content-type", "text/event-stream") in headers:
        return ()
    if method == "HEAD":
        return tuple((name, value) for name, value in headers if name == "content-length")
    return (("content-length", str(len(body))),)

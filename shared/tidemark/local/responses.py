"""A function's answer (payload format 2.0) as an HTTP response, as API Gateway reads it."""

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
    """API Gateway would answer 500 in its place; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""


def gateway_response(status: int, message: str) -> HttpResponse:
    """What the gateway says itself."""
    body = json.dumps({"message": message}, separators=(",", ":")).encode()
    return HttpResponse(
        status, (("content-type", "application/json"), ("content-length", str(len(body)))), body
    )


def read_response(answer: Any, method: str) -> HttpResponse:
    """`answer` is the parsed JSON that the function returned. Raises MalformedResponse."""
    if not isinstance(answer, dict) or "statusCode" not in answer:
        # The function returned its content alone.
        json_headers = {"content-type": "application/json"}
        answer = {"statusCode": 200, "headers": json_headers, "body": json.dumps(answer, ensure_ascii=False)}
    status = _status(answer["statusCode"])
    body = b"" if status in BODILESS else _body(answer)
    headers = _headers(answer)
    if body and not any(name == "content-type" for name, _ in headers):
        headers.append(("content-type", DEFAULT_CONTENT_TYPE))
    length = _content_length(status, method, headers, body)
    kept = [(name, value) for name, value in headers if name != "content-length"]
    return HttpResponse(status, (*kept, *length), body)


def for_method(answer: HttpResponse, method: str) -> HttpResponse:
    """An answer to HEAD has no body, whoever gives it."""
    return replace(answer, body=b"") if method == "HEAD" else answer


def _status(value: Any) -> int:
    status = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if not isinstance(status, int) or isinstance(status, bool) or not 200 <= status <= 599:
        raise MalformedResponse(f"statusCode is {value!r}")
    return status


def _body(answer: Mapping[str, Any]) -> bytes:
    body = answer.get("body")
    if body is None:
        return b""
    if not isinstance(body, str):
        raise MalformedResponse(f"body is a {type(body).__name__}, not a string")
    if answer.get("isBase64Encoded") is not True:
        return body.encode()
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedResponse(f"body is not base64: {error}") from error


def _headers(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    headers, cookies = answer.get("headers") or {}, answer.get("cookies") or []
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
    if any(character in text for character in "\r\n\0") or not _is_latin(text):
        raise MalformedResponse(f"{text!r} cannot be a header's value")
    return text


def _is_latin(text: str) -> bool:
    return all(ord(character) < 256 for character in text)


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

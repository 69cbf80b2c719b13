"""A function's response is read as API Gateway reads format 2.0; an invalid one is refused in the same
way."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tidemark.local.gateway import MalformedResponse, for_method, gateway_response, read_response


def headers_of(answer: Any, method: str = "GET") -> dict[str, str]:
    return dict(read_response(answer, method).headers)


def test_a_response_has_the_functions_status_headers_cookies_and_body() -> None:
    answer = read_response(
        {
            "statusCode": 201,
            "headers": {"Content-Type": "text/css", "X-Count": 3, "X-Flag": True},
            "cookies": ["a=1; Path=/", "b=2"],
            "body": "é",
        },
        "GET",
    )
    assert answer.status == 201
    assert answer.body == "é".encode()
    assert answer.headers == (
        ("content-type", "text/css"),
        ("x-count", "3"),
        ("x-flag", "true"),
        ("set-cookie", "a=1; Path=/"),
        ("set-cookie", "b=2"),
        ("content-length", "2"),
    )


def test_a_base64_body_is_decoded() -> None:
    body = bytes(range(256))
    encoded = base64.b64encode(body).decode()
    assert read_response({"statusCode": 200, "body": encoded, "isBase64Encoded": True}, "GET").body == body


def test_a_result_without_a_status_is_the_body_as_json() -> None:
    answer = read_response({"tide": "high"}, "GET")
    assert (answer.status, answer.body) == (200, b'{"tide": "high"}')
    assert dict(answer.headers)["content-type"] == "application/json"


def test_a_body_without_a_content_type_is_plain_text() -> None:
    assert headers_of({"statusCode": 200, "body": "x"})["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize("status", [204, 304])
def test_a_204_or_304_has_no_body_length_or_type(status: int) -> None:
    """A body that the function returned is dropped."""
    answer = read_response({"statusCode": status, "headers": {"content-length": "5"}, "body": "stray"}, "GET")
    assert answer.body == b""
    assert answer.headers == ()


def test_the_gateway_computes_the_content_length_itself() -> None:
    assert (
        headers_of({"statusCode": 200, "headers": {"Content-Length": "99"}, "body": "abc"})["content-length"]
        == "3"
    )


def test_head_keeps_the_functions_content_length() -> None:
    answer = {"statusCode": 200, "headers": {"content-length": "99"}, "body": ""}
    assert headers_of(answer, "HEAD")["content-length"] == "99"


def test_head_has_no_body_even_in_an_error() -> None:
    assert for_method(gateway_response(500, "Internal Server Error"), "HEAD").body == b""


def test_headers_of_the_connection_are_dropped() -> None:
    answer = {"statusCode": 200, "headers": {"Connection": "close", "Transfer-Encoding": "chunked"}}
    assert headers_of(answer) == {"content-length": "0"}


@pytest.mark.parametrize(
    "answer",
    [
        {"statusCode": "two hundred"},
        {"statusCode": None},
        {"statusCode": True},
        {"statusCode": 99},
        {"statusCode": 600},
        {"statusCode": 200, "body": {"not": "a string"}},
        {"statusCode": 200, "body": "not base64!", "isBase64Encoded": True},
        {"statusCode": 200, "headers": ["a"]},
        {"statusCode": 200, "cookies": "a=1"},
        {"statusCode": 200, "headers": {"x": None}},
        {"statusCode": 200, "headers": {"x": "a\r\nset-cookie: b=1"}},
        {"statusCode": 200, "headers": {"x": "☃"}},
    ],
)
def test_a_malformed_response_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(MalformedResponse):
        read_response(answer, "GET")

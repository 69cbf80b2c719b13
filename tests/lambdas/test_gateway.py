"""The event that an HTTP API or a function URL makes of a request, and the response to it."""

import base64
from urllib.parse import quote

import pytest

from tests.http.asgi import JSON, PRODUCER, TEXT, Door
from tests.lambdas.functions import Functions, function_url_event, http_event, in_base64, load_event

BINARY = {"Content-Type": "application/octet-stream"}
HOST = load_event("get-catch-up")["headers"]["host"]


# --- bodies -------------------------------------------------------------------------


@pytest.mark.parametrize("body", [bytes(range(256)), b"plain", "żółw".encode()], ids=len)
def test_every_byte_survives_the_event_and_the_response(functions: Functions, path: str, body: bytes) -> None:
    functions(http_event("PUT", path, headers=BINARY, body=body))
    functions(http_event("POST", path, headers=BINARY, body=body))
    assert functions(http_event("GET", path)).body == body * 2


def test_json_is_the_same_as_text_and_as_base64(functions: Functions, path: str) -> None:
    """The same bytes, whether the gateway took the body for text or not."""
    text = '{"name":"żółw 🐢\u2028",  "b":"\\u017c\\n"}'
    create = http_event("PUT", path, headers=JSON, body=text.encode())
    functions(create)
    functions(in_base64(http_event("POST", path, headers=JSON, body=text.encode())))
    answer = functions(http_event("GET", path))
    assert answer.body == f"[{text},{text}]".encode()
    assert answer["content-type"] == "application/json"


def test_an_event_without_a_body_is_an_empty_append_or_a_close(functions: Functions, path: str) -> None:
    functions(http_event("PUT", path, headers=TEXT))
    nothing = http_event("POST", path, headers=TEXT)
    assert functions(nothing).status == 400
    assert functions(nothing | {"body": ""}).status == 400
    closing = http_event("POST", path, headers={"Stream-Closed": "true"})
    assert functions(closing)["stream-closed"] == "true"


# --- answers ------------------------------------------------------------------------


def test_204_keeps_its_content_type(functions: Functions, path: str) -> None:
    """If the application names none, the adapter sends `application/json` instead."""
    functions(http_event("PUT", path, headers=TEXT, body=b"x"))
    appended = functions(http_event("POST", path, headers=TEXT, body=b"x"))
    polled = functions(http_event("GET", path, "offset=now&live=long-poll"))
    not_modified = functions(http_event("GET", path, headers={"If-None-Match": "*"}))
    produced = functions(http_event("POST", path, headers=TEXT | PRODUCER, body=b"x"))
    assert [answer.status for answer in (appended, polled, not_modified, produced)] == [204, 204, 304, 200]
    for answer in (appended, polled, not_modified, produced):
        assert answer["content-type"] == "text/plain"


# --- headers ------------------------------------------------------------------------


def test_an_invalid_query_gets_400_from_the_raw_query(functions: Functions, path: str) -> None:
    """The query that the gateway has parsed no longer shows that the original is invalid."""
    functions(http_event("PUT", path, headers=TEXT, body=b"x"))
    for query in ("offset=-1&offset=-1", "offset=&live=sse", "offset=%2C"):
        assert functions(http_event("GET", path, query)).status == 400


# --- names --------------------------------------------------------------------------

NAMES = ["a b", "a+b#c", "żółw/🐢", "a:b@c;d=e,f!g$h&i'j(k)*l", '~._-\\"quoted"']


@pytest.mark.parametrize("name", NAMES)
def test_a_path_names_the_same_stream_at_a_server_a_gateway_and_a_function_url(
    functions: Functions, door: Door, path: str, name: str
) -> None:
    """A gateway has decoded the path; a server and a function URL have not. Decoding twice, or never, would
    make two streams of one, or one of two."""
    encoded = f"{path}/{quote(name)}"
    created = functions(http_event("PUT", encoded, headers=TEXT, body=b"gateway,"))
    assert created.status == 201
    location = (created["location"] or "").removeprefix(f"https://{HOST}")
    assert door.get(location).body == b"gateway,"
    assert door.post(encoded, TEXT, b"server,").status == 204
    through_url = function_url_event(http_event("POST", encoded, headers=TEXT, body=b"url"))
    assert functions(through_url).status == 204
    event = http_event("GET", encoded)
    for answer in (door.get(encoded), functions(event), functions(function_url_event(event))):
        assert answer.body == b"gateway,server,url"
    event = function_url_event(http_event("PUT", f"{encoded}/url", headers=TEXT, body=b"url"))
    created = functions(event)
    assert created["location"] == f"https://{event['headers']['host']}{event['rawPath']}"
    assert door.get(f"{encoded}/url").body == b"url"


@pytest.mark.parametrize("name", ["100%", "%2F", "%zz", "a?b#c", "x\ufffd"])
def test_an_http_api_refuses_names_it_cannot_pass(
    functions: Functions, door: Door, path: str, name: str
) -> None:
    """The path that a function gets could belong to another name (`tests/stack/events.py: decode_path`). A
    server and a function URL accept the name."""
    encoded = f"{path}/{quote(name)}"
    assert door.put(encoded, TEXT, b"kept").status == 201
    for method in ("PUT", "POST", "GET", "HEAD", "DELETE"):
        assert functions(http_event(method, encoded, headers=TEXT, body=b"x")).status == 400
    assert "decodes the path" in functions(http_event("GET", encoded)).json["error"]
    assert functions(function_url_event(http_event("GET", encoded))).body == b"kept"


def test_every_response_body_is_base64(functions: Functions, path: str) -> None:
    """As text it would be escaped in JSON, up to six bytes for one (`test_size.py`)."""
    functions(http_event("PUT", path, headers=TEXT, body=b"a\xff"))
    for name, query in ((path, ""), (f"{path}/x", ""), (path, "live=sse&offset=-1")):
        raw = functions.raw(http_event("GET", name, query))
        assert raw["isBase64Encoded"] is True
        assert base64.b64decode(raw["body"])

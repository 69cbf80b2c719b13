"""Lambda accepts a result of 6 MB of JSON: every page fits, whatever it holds."""

import base64
import json
from collections.abc import Callable

import pytest

from tests.answers import Answer
from tests.http.asgi import Door
from tests.lambdas.functions import Functions, http_event
from tidemark.http.requests import MAX_BODY_BYTES

pytestmark = pytest.mark.slow

#: Four megabytes of what costs most as events: a prefix for every line, and in JSON for every break.
TEXTS = [b"a" * MAX_BODY_BYTES, "🌊".encode() * (MAX_BODY_BYTES // 4)]
TEXTS += [b"\n" * (MAX_BODY_BYTES // 4), b" \n" * (MAX_BODY_BYTES // 6)]
BYTES = bytes(range(256)) * (MAX_BODY_BYTES // 256)


def json_of(element: str, separator: str = ",") -> bytes:
    count = (MAX_BODY_BYTES - 2) // len((element + separator).encode())
    return f"[{separator.join([element] * count)}]".encode()


JSONS = [
    json_of('{"a":"b","c":"d","e":"f","g":"h","i":"j"}'),
    json_of('{\n  "a": [\n    1,\n    2,\n    3,\n    4\n  ]\n}'),
    b"[[" + json_of("1", ",\n")[1:-1] + b"]]",
]


@pytest.fixture
def write(door: Door, path: str) -> Callable[..., str]:
    def create(content_type: str, body: bytes, **headers: str) -> str:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        assert door.put(path, {"Content-Type": content_type} | named, body).status == 201
        return path

    return create


@pytest.mark.parametrize(
    ("kind", "body"),
    [("text/plain", b"\x01" * MAX_BODY_BYTES), ("image/png", BYTES), ("application/json", JSONS[0])],
    ids=["text", "bytes", "json"],
)
def test_the_largest_page_fits_a_response(
    functions: Functions, write: Callable[[str, bytes], str], kind: str, body: bytes
) -> None:
    """Whatever it holds, because each response is base64."""
    path = write(kind, body)
    for query in ("offset=-1", "offset=-1&live=long-poll"):
        assert functions(http_event("GET", path, query)).body == body


def follow(functions: Functions, path: str) -> list[Answer]:
    """The responses to one request after another, as a client of buffered events sends them."""
    answers: list[Answer] = []
    offset = "-1"
    while len(answers) < 100:
        answer = functions(http_event("GET", path, f"offset={offset}&live=sse"))
        answers.append(answer)
        control = json.loads(answer.events[-1].data)
        if control.get("upToDate") or control.get("streamClosed"):
            return answers
        assert control["streamNextOffset"] > offset, "every answer leads on"
        offset = control["streamNextOffset"]
    raise AssertionError("no end in sight")


def data_of(answers: list[Answer]) -> list[str]:
    return [event.data for answer in answers for event in answer.events if event.type == "data"]


@pytest.mark.parametrize(
    ("kind", "body", "headers"),
    [
        *(("text/plain", body, {}) for body in TEXTS),
        *(("application/json", body, {}) for body in JSONS),
        *(("application/octet-stream", BYTES, headers) for headers in ({}, {"Stream_Closed": "true"})),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_buffered_events_deliver_the_largest_stream(
    functions: Functions, write: Callable[..., str], kind: str, body: bytes, headers: dict[str, str]
) -> None:
    """Only the answer with the last of it says that a stream is closed."""
    texts = data_of(follow(functions, write(kind, body, **headers)))
    if kind == "application/json":
        assert [item for text in texts for item in json.loads(text)] == json.loads(body)
    elif kind == "text/plain":
        assert "".join(texts) == body.decode()
    else:
        assert b"".join(base64.b64decode(text, validate=True) for text in texts) == body

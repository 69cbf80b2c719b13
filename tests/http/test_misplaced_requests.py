"""Requests that a newcomer sends to the wrong path: the error names the right one."""

import pytest

from tests.http.asgi import CLOSE, JSON, TEXT, Door

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
TYPE = "Content-Type: text/plain"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (TEXT, b""),
        ({"Stream-TTL": "60"}, b""),
        (CLOSE, b""),
        ({"Stream-Retain-Seconds": "60", "Stream-TTL": "5"}, b""),
        ({"Stream-Expires-At": "2040-01-01T00:00:00Z"}, b""),
        ({}, b"hello"),
        (JSON, b"{}"),
        # As Node's fetch sends it, and with it upstream's clients.
        (JSON | {"Sec-Fetch-Mode": "cors"}, b""),
    ],
)
def test_a_stream_created_among_buckets_gets_400(door: Door, headers: dict[str, str], body: bytes) -> None:
    """`create({url: "…/chat"})` once created a bucket, and the append that followed failed without a
    reason."""
    refused = door.put("/forgotten", headers, body)
    assert refused.status == 400
    assert "to create a stream, PUT /v1/stream/forgotten or PUT /forgotten/" in refused.json["error"]
    assert door.get("/forgotten").status == 404, "no bucket was made"


def test_a_bucket_is_created_without_a_body_or_with_content_type_json(door: Door, path: str) -> None:
    number = path.rpartition("/")[2]
    assert door.put(f"/plain-bucket-{number}").status == 201
    made = door.put(f"/json-bucket-{number}", JSON)
    assert made.status == 201
    assert f"A bucket was made; to create a stream, PUT /v1/stream/json-bucket-{number}" in made.json["note"]


@pytest.mark.parametrize(
    ("method", "target", "status", "said"),
    [
        ("POST", "/chat", 405, "a stream's path is /v1/stream/chat or /chat/"),
        ("POST", "/nothing-here", 405, "a stream's path is /v1/stream/nothing-here or /nothing-here/"),
        ("PUT", "/abc", 400, "/v1/stream/"),  # Too short for a bucket.
        ("POST", "/abc", 400, "/v1/stream/"),
        *((method, "/agents/streams", 400, "'streams' is reserved") for method in ("PUT", "POST", "DELETE")),
    ],
)
def test_the_error_of_a_path_that_takes_no_append_says_where_streams_live(
    door: Door, method: str, target: str, status: int, said: str
) -> None:
    refused = door(method, target, TEXT, b"x")
    assert (refused.status, said in refused.json["error"]) == (status, True)


@pytest.mark.parametrize("value", [*FORM.values(), "multipart/form-data; boundary=a", "Multipart/Form-Data"])
def test_a_form_content_type_gets_400(door: Door, path: str, value: str) -> None:
    refused = door.put(path, {"Content-Type": value}, b"a=b")
    assert (refused.status, TYPE in refused.json["error"], door.head(path).status) == (400, True, 404)


def test_an_append_of_curls_form_content_type_gets_409_with_the_header_to_add(door: Door, path: str) -> None:
    assert door.put(path, TEXT).status == 201
    refused = door.post(path, FORM, b"hello")
    assert refused.status == 409
    assert f"add the header {TYPE}" in refused.json["error"]
    assert "curl" in refused.json["error"]

"""Requests that a newcomer sends to the wrong path: the error names the right one."""

from __future__ import annotations

import pytest

from tests.http.asgi import TEXT, Door

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (TEXT, b""),
        ({"Stream-TTL": "60"}, b""),
        ({"Stream-Closed": "true"}, b""),
        ({"Stream-Expires-At": "2040-01-01T00:00:00Z"}, b""),
        ({}, b"hello"),
        ({"Content-Type": "application/json"}, b"{}"),
        # As Node's fetch sends it, and with it upstream's clients.
        ({"Content-Type": "application/json", "Sec-Fetch-Mode": "cors"}, b""),
    ],
)
def test_a_stream_created_where_buckets_are_gets_400(
    door: Door, headers: dict[str, str], body: bytes
) -> None:
    """`create({url: "…/chat"})` once created a bucket, and the append that followed failed without a
    reason."""
    refused = door.put("/forgotten", headers, body)
    assert refused.status == 400
    assert "PUT /v1/stream/forgotten" in refused.json["error"]
    assert "PUT /forgotten/" in refused.json["error"]
    assert door.get("/forgotten").status == 404, "no bucket was made"


def test_a_bucket_is_created_without_a_body_or_with_content_type_json(door: Door, path: str) -> None:
    number = path.rpartition("/")[2]
    assert door.put(f"/plain-bucket-{number}").status == 201
    made = door.put(f"/json-bucket-{number}", {"Content-Type": "application/json"})
    assert made.status == 201
    assert f"A bucket was made; to create a stream, PUT /v1/stream/json-bucket-{number}" in made.json["note"]


@pytest.mark.parametrize("bucket", ["chat", "nothing-here"])
def test_an_append_to_a_bucket_gets_405_that_says_where_streams_live(door: Door, bucket: str) -> None:
    refused = door.post(f"/{bucket}", TEXT, b"x")
    assert refused.status == 405
    assert refused["Allow"] == "GET, HEAD, PUT, DELETE, OPTIONS"
    assert f"a stream's path is /v1/stream/{bucket} or /{bucket}/" in refused.json["error"]


def test_a_name_too_short_for_a_bucket_gets_400_that_says_where_streams_live(door: Door) -> None:
    for refused in (door.put("/abc", TEXT), door.post("/abc", TEXT, b"x")):
        assert refused.status == 400
        assert "/v1/stream/" in refused.json["error"]


def test_the_reserved_stream_id_gets_400_that_names_it(door: Door) -> None:
    for method in ("PUT", "POST", "DELETE"):
        refused = door(method, "/agents/streams", TEXT, b"x")
        assert (refused.status, "'streams' is reserved" in refused.json["error"]) == (400, True)


@pytest.mark.parametrize("value", [*FORM.values(), "multipart/form-data; boundary=a", "Multipart/Form-Data"])
def test_a_form_content_type_gets_400(door: Door, path: str, value: str) -> None:
    refused = door.put(path, {"Content-Type": value}, b"a=b")
    assert refused.status == 400
    assert "Content-Type: text/plain" in refused.json["error"]
    assert door.head(path).status == 404


def test_the_form_content_type_of_curl_gets_400_with_the_header_to_add(door: Door, path: str) -> None:
    assert door.put(path, TEXT).status == 201
    refused = door.post(path, FORM, b"hello")
    assert refused.status == 409
    assert "add the header Content-Type: text/plain" in refused.json["error"]
    assert "curl" in refused.json["error"]

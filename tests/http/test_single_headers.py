"""Headers with a single value: spaces around it do not count, and a repeated header is refused."""

import pytest

from tests.http.asgi import PRODUCER, TEXT, Door


@pytest.fixture
def stream(door: Door, path: str) -> str:
    assert door.put(path, TEXT).status == 201
    return path


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("POST", "Stream-Seq", "a"), ("POST", "Stream-Closed", "false"),
        ("POST", "Content-Type", "text/plain"), ("POST", "Content-Encoding", "identity"),
        *(("POST", name, value) for name, value in PRODUCER.items()), ("PUT", "Stream-TTL", "60"),
        ("PUT", "Stream-Expires-At", "2040-01-01T00:00:00Z"), ("PUT", "Stream-Compact", "last-by-key"),
        ("PUT", "Stream-Compact-Key", "/id"), ("PUT", "Stream-Forked-From", "/v1/stream/a"),
        ("PUT", "Stream-Fork-Offset", "0" * 16),
        *((method, "Stream-Closed", "true") for method in ("POST", "PUT")),
    ],
)  # fmt: skip
def test_a_header_that_is_sent_twice_gets_400_and_nothing_is_done(
    door: Door, stream: str, method: str, name: str, value: str
) -> None:
    headers = TEXT | (PRODUCER if name in PRODUCER else {name: value})
    target = stream if method == "POST" else f"{stream}/new"
    refused = door(method, target, [*headers.items(), (name, value)], b"x")
    assert refused.status == 400
    assert refused.json["error"] == f"{name} must be sent once; it was sent 2 times"
    assert (door.get(stream).body, door.head(f"{stream}/new").status) == (b"", 404)


def test_a_repeated_header_that_a_gateway_joined_gets_400(door: Door, stream: str) -> None:
    """API Gateway joins repeated headers with a comma before a function sees them."""
    comma = "must not contain a comma: gateways join repeated headers with one"
    for headers, reason in (
        (PRODUCER | {"Producer-Id": "p,p"}, comma),
        ({"Stream-Seq": "a, b"}, comma),
        ({"Stream-Closed": "true,true"}, "must be sent once"),
        ({"Stream-Closed": "false, TRUE"}, "must be sent once"),
        ({"Content-Type": "text/plain; charset=utf-8,text/plain"}, "must be sent once"),
    ):
        refused = door.post(stream, TEXT | headers, b"x")
        assert (refused.status, reason in refused.json["error"]) == (400, True), headers
    assert door.head(stream)["Stream-Closed"] is None


def test_a_comma_in_quotes_is_a_part_of_the_content_type(door: Door, path: str) -> None:
    value = 'multipart/mixed; boundary="a,b"'
    assert door.put(path, {"Content-Type": value}).status == 201
    assert door.head(path)["Content-Type"] == value


@pytest.mark.parametrize("value", ["false", "1", "", "tru e", "no, never", "truely,no"])
def test_any_other_value_of_stream_closed_counts_as_absent(door: Door, path: str, value: str) -> None:
    """§4.1."""
    assert door.put(path, TEXT | {"Stream-Closed": value})["Stream-Closed"] is None
    assert door.post(path, TEXT | {"Stream-Closed": value}, b"x").status == 204
    assert door.head(path)["Stream-Closed"] is None


@pytest.mark.parametrize("value", [" true", " \t True \t"])
def test_spaces_around_a_value_do_not_count(door: Door, path: str, value: str) -> None:
    """RFC 9110 §5.5."""
    created = door.put(path, {"Content-Type": " text/plain ", "Stream-TTL": " 60 "})
    assert (created["Content-Type"], door.head(path)["Stream-TTL"]) == ("text/plain", "60")
    assert door.post(path, TEXT | PRODUCER, b"x").status == 200
    repeated = {"Producer-Id": " p\t", "Producer-Epoch": " 0", "Producer-Seq": "0 "}
    assert door.post(path, TEXT | repeated, b"x").status == 204
    assert door.post(path, {"Stream-Closed": value})["Stream-Closed"] == "true"


@pytest.mark.parametrize("encoding", ["gzip", "identity, gzip", "x"])
def test_a_body_with_content_encoding_gets_415(door: Door, path: str, stream: str, encoding: str) -> None:
    """The stream would serve it without the Content-Encoding, and no reader could tell."""
    bucket = f"/bucket-{path.rpartition('/')[2]}"
    door.put(bucket)
    snapshot = f"{bucket}/a/snapshot/0000000000000003"
    assert door.put(f"{bucket}/a", TEXT, b"abc").status == 201
    for method, place in (("POST", stream), ("PUT", f"{path}/new"), ("PUT", snapshot)):
        refused = door(method, place, TEXT | {"Content-Encoding": encoding}, b"\x1f\x8b")
        assert (refused.status, refused["Accept-Encoding"]) == (415, "identity")
        assert "Content-Encoding" in refused.json["error"]
    assert (door.get(stream).body, door.head(f"{path}/new").status) == (b"", 404)
    for same in ("identity", " Identity ", ""):
        assert door.post(stream, TEXT | {"Content-Encoding": same}, b"x").status == 204

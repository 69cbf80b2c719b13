"""Creating streams (§5.1), and the Location header."""

from __future__ import annotations

import pytest

from tests.http.asgi import HOST, Door

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}


def test_a_new_stream_gets_201(door: Door, path: str) -> None:
    answer = door.put(path, TEXT)
    assert answer.status == 201
    assert answer["location"] == f"http://{HOST}{path}"
    assert answer["content-type"] == "text/plain"
    assert answer.next_offset == "0000000000000000"
    assert answer["stream-closed"] is None
    assert answer.body == b""


def test_the_same_creation_again_gets_200_and_the_current_tail(door: Door, path: str) -> None:
    """A repeated creation creates nothing."""
    door.put(path, TEXT, b"hello")
    answer = door.put(path, {"Content-Type": "TEXT/plain; charset=utf-8"}, b"other")
    assert answer.status == 200
    assert answer["location"] is None
    assert answer["content-type"] == "text/plain"
    assert answer.next_offset == "0000000000000005"
    assert answer["stream-closed"] is None
    assert door.get(path).body == b"hello"


def test_a_stream_without_a_content_type_is_octet_stream(door: Door, path: str) -> None:
    assert door.put(path)["content-type"] == "application/octet-stream"
    assert door.put(path, {"Content-Type": "application/octet-stream"}).status == 200


@pytest.mark.parametrize(
    ("headers", "body", "content"),
    [
        (TEXT, b"hello", b"hello"),
        (TEXT, "żółw\r\n\0".encode(), "żółw\r\n\0".encode()),
        ({}, bytes(range(256)), bytes(range(256))),
        (JSON, b' {"b":1,  "a":1.0} ', b'[{"b":1,  "a":1.0}]'),
        (JSON, b"[1, [2], {}]", b"[1,[2],{}]"),
        (JSON, b"[]", b"[]"),
        (JSON, b"", b"[]"),
        ({"Content-Type": "application/ndjson"}, b'{"a":1}\n{"a":2}\n', b'{"a":1}\n{"a":2}\n'),
    ],
)
def test_a_creation_may_carry_the_first_messages(
    door: Door, path: str, headers: dict[str, str], body: bytes, content: bytes
) -> None:
    answer = door.put(path, headers, body)
    assert answer.status == 201
    read = door.get(path)
    assert read.body == content
    assert read.next_offset == answer.next_offset == door.head(path).next_offset


def test_a_stream_can_be_created_closed_with_its_messages(door: Door, path: str) -> None:
    answer = door.put(path, TEXT | {"Stream-Closed": "true"}, b"all there is")
    assert answer.status == 201
    assert answer["stream-closed"] == "true"
    assert door.post(path, TEXT, b"more").status == 409
    read = door.get(path)
    assert (read.body, read["stream-closed"]) == (b"all there is", "true")


def test_a_stream_can_be_created_closed_and_empty(door: Door, path: str) -> None:
    assert door.put(path, JSON | {"Stream-Closed": "true"})["stream-closed"] == "true"
    read = door.get(path)
    assert (read.body, read["stream-closed"], read["stream-up-to-date"]) == (b"[]", "true", "true")


@pytest.mark.parametrize("value", ["true", "TRUE", "True", "tRuE"])
def test_stream_closed_true_is_accepted_in_any_case(door: Door, path: str, value: str) -> None:
    assert door.put(path, TEXT | {"Stream-Closed": value})["stream-closed"] == "true"


@pytest.mark.parametrize("value", ["false", "yes", "1", "", "true1", "no, no", "truе"[:3]])
def test_any_other_value_of_stream_closed_creates_an_open_stream(door: Door, path: str, value: str) -> None:
    """§4.1: such a value is not an error; it counts as absent."""
    answer = door.put(path, TEXT | {"Stream-Closed": value})
    assert (answer.status, answer["stream-closed"]) == (201, None)
    assert door.put(path, TEXT).status == 200


@pytest.mark.parametrize(
    ("now_closed", "asked", "status"),
    [(False, False, 200), (True, False, 409), (True, True, 200), (False, True, 409)],
)
def test_a_repeated_creation_must_match_the_closure(
    door: Door, path: str, now_closed: bool, asked: bool, status: int
) -> None:
    """The table of §5.1, for a stream that was closed later than it was created."""
    door.put(path, TEXT)
    if now_closed:
        door.post(path, {"Stream-Closed": "true"})
    answer = door.put(path, TEXT | ({"Stream-Closed": "true"} if asked else {}))
    assert answer.status == status
    if status == 200:
        assert answer["stream-closed"] == ("true" if now_closed else None)


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        ({"Stream-TTL": "60"}, {"Stream-TTL": "60"}, 200),
        ({"Stream-TTL": "60"}, {"Stream-TTL": "61"}, 409),
        ({"Stream-TTL": "60"}, {}, 409),
        ({}, {"Stream-TTL": "60"}, 409),
        (
            {"Stream-Expires-At": "2040-01-01T00:00:00Z"},
            {"Stream-Expires-At": "2040-01-01T01:00:00.0+01:00"},
            200,
        ),
        ({"Stream-Expires-At": "2040-01-01T00:00:00Z"}, {"Stream-Expires-At": "2040-01-01T00:00:01Z"}, 409),
        ({"Stream-Expires-At": "2040-01-01T00:00:00Z"}, {"Stream-TTL": "60"}, 409),
        ({"Stream-Retain-Seconds": "60"}, {"Stream-Retain-Seconds": "60"}, 200),
        ({"Stream-Retain-Seconds": "60"}, {}, 409),
        ({"Stream-Retain-Bytes": "60"}, {"Stream-Retain-Seconds": "60"}, 409),
    ],
)
def test_a_repeated_creation_must_match_the_expiry_and_the_retention(
    door: Door, path: str, first: dict[str, str], second: dict[str, str], status: int
) -> None:
    assert door.put(path, TEXT | first).status == 201
    assert door.put(path, TEXT | second).status == status


def test_a_stream_created_again_after_deletion_has_nothing_of_the_old_one(door: Door, path: str) -> None:
    """Neither content, type, producers nor sequence."""
    producer = {"Producer-Id": "p", "Producer-Epoch": "3", "Producer-Seq": "0", "Stream-Seq": "9"}
    door.put(path, TEXT, b"old")
    door.post(path, TEXT | producer, b"older")
    old = door.get(path)
    assert door.delete(path).status == 204
    assert door.get(path).status == 404
    assert door.put(path, JSON).status == 201
    new = door.get(path)
    assert (new.body, new["content-type"]) == (b"[]", "application/json")
    again = JSON | producer | {"Producer-Epoch": "0", "Stream-Seq": "1"}
    assert door.post(path, again, b"1").status == 200
    assert door.get(path, {"If-None-Match": old["etag"] or ""}).status == 200


# --- Location -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "a/b/c",
        "a%20b",
        "100%25",
        "%2525",
        "%E2%82%AC",
        "%C3%A9t%C3%A9/x",
        "a%3Fb",
        "a%23b",
        "a%5Cb",
        "a:b@c;d=e,f!g$h&i'j(k)l*m+n",
        "~._-",
        "%F0%9F%8C%8A",
    ],
)
def test_location_leads_to_the_stream(door: Door, path: str, name: str) -> None:
    """The URL is the requested one, still percent-encoded, whatever the name holds."""
    answer = door.put(f"{path}/{name}", TEXT, b"here")
    assert answer.status == 201
    assert answer["location"] == f"http://{HOST}{path}/{name}"
    assert door.get((answer["location"] or "").removeprefix(f"http://{HOST}")).body == b"here"


def test_location_encodes_a_path_that_was_sent_raw(door: Door, path: str) -> None:
    """Bytes that a client sends raw count as UTF-8; different bytes are different streams."""
    assert door.put(f"{path}/é", TEXT, b"acute")["location"] == f"http://{HOST}{path}/%C3%A9"
    assert door.put(f"{path}/è", TEXT, b"grave").status == 201
    assert door.get(f"{path}/%C3%A9").body == b"acute"


def test_location_uses_the_scheme_of_the_proxy(door: Door, path: str) -> None:
    answer = door.put(path, TEXT | {"X-Forwarded-Proto": "https"})
    assert answer["location"] == f"https://{HOST}{path}"


def test_location_has_no_query(door: Door, path: str) -> None:
    assert door.put(f"{path}?x=1&offset=2", TEXT)["location"] == f"http://{HOST}{path}"


def test_two_encodings_of_one_name_are_one_stream(door: Door, path: str) -> None:
    door.put(f"{path}/a b~c".replace(" ", "%20"), TEXT, b"x")
    assert door.get(f"{path}/%61%20b%7Ec").body == b"x"


def test_names_that_differ_are_different_streams(door: Door, path: str) -> None:
    pairs = [
        ("%2525", "%25"),
        ("a", "A"),
        ("a%20", "a"),
        ("a+b", "a%20b"),
        ("%C3%A9", "e%CC%81"),
        ("x.", "x"),
    ]
    for number, (one, other) in enumerate(pairs):
        door.put(f"{path}/{number}/{one}", TEXT, b"one")
        assert door.put(f"{path}/{number}/{other}", TEXT, b"other").status == 201
        assert door.get(f"{path}/{number}/{one}").body == b"one"


def test_a_name_with_a_slash_is_a_stream_of_its_own(door: Door, path: str) -> None:
    """A name has no directories: `a/b` does not belong to `a`."""
    door.put(path, TEXT, b"above")
    door.put(f"{path}/below", TEXT, b"below")
    assert door.delete(path).status == 204
    assert door.get(f"{path}/below").body == b"below"

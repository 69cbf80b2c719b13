"""Creating streams (§5.1), and the Location header."""

from __future__ import annotations

import pytest

from tests.http.asgi import HOST, JSON, TEXT, Door


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


@pytest.mark.parametrize(
    ("headers", "body", "content"),
    [
        (TEXT, "żółw\r\n\0".encode(), "żółw\r\n\0".encode()),
        ({}, bytes(range(256)), bytes(range(256))),
        (JSON, b"[1, [2], {}]", b"[1,[2],{}]"),
        (JSON, b"[]", b"[]"),
        ({"Content-Type": "application/ndjson"}, b'{"a":1}\n{"a":2}\n', b'{"a":1}\n{"a":2}\n'),
    ],
)
def test_a_creation_may_carry_the_first_messages(
    door: Door, path: str, headers: dict[str, str], body: bytes, content: bytes
) -> None:
    answer = door.put(path, headers, body)
    assert (answer.status, answer.body) == (201, b"")
    read = door.get(path)
    assert read.body == content
    assert read.next_offset == answer.next_offset == door.head(path).next_offset


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        ({"Stream-TTL": "60"}, {"Stream-TTL": "60"}, 200),
        ({"Stream-Expires-At": "2040-01-01T00:00:00Z"}, {"Stream-TTL": "60"}, 409),
        ({"Stream-Retain-Seconds": "60"}, {"Stream-Retain-Seconds": "60"}, 200),
        ({"Stream-Retain-Seconds": "60"}, {}, 409),
        ({"Stream-Retain-Bytes": "60"}, {"Stream-Retain-Seconds": "60"}, 409),
    ],
)
def test_a_repeated_creation_must_match_the_expiry_and_the_retention(
    door: Door, path: str, first: dict[str, str], second: dict[str, str], status: int
) -> None:
    """Every difference of the expiry is in `protocol/test_create.py`."""
    assert door.put(path, TEXT | first).status == 201
    assert door.put(path, TEXT | second).status == status


# --- Location -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["a/b/c", "a%20b", "%2525", "%C3%A9t%C3%A9/x", "a%3Fb%23c%5C", "a:b@c;d=e,f!g$h&i'j(k)l*m+n", "~._-"],
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


def test_location_has_the_scheme_of_the_proxy_and_no_query(door: Door, path: str) -> None:
    answer = door.put(f"{path}?x=1&offset=2", TEXT | {"X-Forwarded-Proto": "https"})
    assert answer["location"] == f"https://{HOST}{path}"


@pytest.mark.parametrize(
    ("prefix", "below"),
    [("/app", "/app"), ("/a/b/", "/a/b"), ("/", ""), ("app", ""), ("/a?b", ""), ("//a", "")],
)
def test_location_is_below_the_path_that_a_proxy_strips(
    door: Door, path: str, prefix: str, below: str
) -> None:
    answer = door.put(path, TEXT | {"X-Forwarded-Prefix": prefix})
    assert answer["location"] == f"http://{HOST}{below}{path}"


def test_a_name_means_one_stream_however_it_is_encoded(door: Door, path: str) -> None:
    """Names are told apart in `protocol/test_stream_key.py`. They have no directories: `a/b` does not belong
    to `a`."""
    door.put(f"{path}/a%20b~c", TEXT, b"x")
    assert door.get(f"{path}/%61%20b%7Ec").body == b"x"
    door.put(path, TEXT, b"above")
    assert door.delete(path).status == 204
    assert door.get(f"{path}/a%20b~c").body == b"x"

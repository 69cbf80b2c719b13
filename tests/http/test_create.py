"""Creating streams (§5.1), and the Location header."""

import pytest

from tests.http.asgi import CLOSE, HOST, JSON, TEXT, Door

COMPACT = JSON | {"Stream-Compact": "last-by-key"}


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        (JSON, {}, 409),
        (JSON, JSON | CLOSE, 409),
        (TEXT | {"Stream-Expires-At": "2040-01-01T00:00:00Z"}, TEXT | {"Stream-TTL": "60"}, 409),
        (TEXT | {"Stream-Retain-Seconds": "60"}, TEXT | {"Stream-Retain-Seconds": "60"}, 200),
        (TEXT | {"Stream-Retain-Seconds": "60"}, TEXT, 409),
        (TEXT | {"Stream-Retain-Bytes": "60"}, TEXT | {"Stream-Retain-Seconds": "60"}, 409),
        (COMPACT, COMPACT | {"Stream-Compact-After": "3600"}, 200),
        (COMPACT, JSON, 409),
        (JSON, COMPACT, 409),
        (COMPACT, COMPACT | {"Stream-Compact-Key": "/id"}, 409),
        (COMPACT, COMPACT | {"Stream-Compact-Tombstones": "0"}, 409),
    ],
)
def test_a_repeated_creation_must_match_the_first_one_and_changes_nothing(
    door: Door, path: str, first: dict[str, str], second: dict[str, str], status: int
) -> None:
    """Every difference of the type and of the expiry is in `protocol/test_create.py`."""
    assert door.put(path, first).status == 201
    before = door.get(path), door.head(path)
    answer = door.put(path, second, b'{"c":3}')
    assert (answer.status, door.get(path), door.head(path)) == (status, *before)
    assert (answer["location"], answer["stream-next-offset"]) == (None, f"{0:016}" if status == 200 else None)
    given = ("Stream-Compact" in "".join(second), "Stream-Compact" in "".join(first))
    assert status == 200 or not any(given) or "different Stream-Compact" in answer.json["error"]


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


@pytest.mark.parametrize(
    ("sent", "root"),
    [
        *(({"X-Forwarded-Prefix": given}, "http://{host}/app") for given in ("/app", "/app/")),
        *(({"X-Forwarded-Prefix": given}, "http://{host}") for given in ("/", "app", "/a?b", "//a")),
        ({"X-Forwarded-Prefix": "/a/b/"}, "http://{host}/a/b"),
        ({"X-Forwarded-Proto": "https"}, "https://{host}"),
        # Only CloudFront, which sends the origin secret, may name the host that the client used.
        *(({name: "evil.example"}, "http://{host}") for name in ("X-Tidemark-Host", "X-Forwarded-Host")),
    ],
    ids=str,
)
def test_location_is_where_the_proxy_serves_and_has_no_query(
    door: Door, path: str, sent: dict[str, str], root: str
) -> None:
    answer = door.put(f"{path}?x=1&offset=2", TEXT | sent)
    assert answer["location"] == root.format(host=HOST) + path


def test_a_name_means_one_stream_however_it_is_encoded(door: Door, path: str) -> None:
    """Names are told apart in `protocol/test_stream_key.py`. They have no directories: `a/b` does not belong
    to `a`."""
    door.put(f"{path}/a%20b~c", TEXT, b"x")
    assert door.get(f"{path}/%61%20b%7Ec").body == b"x"
    door.put(path, TEXT, b"above")
    assert door.delete(path).status == 204
    assert door.get(f"{path}/a%20b~c").body == b"x"

"""How caches may keep a private response, and tokens in URLs."""

import itertools
import json
import os
from uuid import uuid4

import pytest

from tests.authorization.tokens import ADMIN, bearer, token
from tests.authorization.ways import WAYS, Way
from tests.support import World
from tidemark.protocol.offset import render_offset
from tidemark.settings import Settings

READS = ["", "?offset=-1", "?offset=now", "?offset=-1&live=long-poll", "?offset=-1&live=sse"]


def test_no_shared_cache_may_keep_a_private_response(way: Way, stream: str) -> None:
    """The reader's own cache may, for as long as without authorization."""
    for method, query in itertools.product(("GET", "HEAD"), READS):
        answer = way(method, f"/v1/stream/{stream}{query}", bearer(f"read:v1/{stream}"))
        assert answer.status == 200
        directives = answer.headers["cache-control"].split(", ")
        assert not {"public", "s-maxage"} & {each.partition("=")[0] for each in directives}
        assert {"private", "no-store"} & set(directives)
        assert "Authorization" in answer.headers["vary"].split(", ")


def test_the_readers_own_cache_may_keep_a_private_response(way: Way, stream: str) -> None:
    first = way("GET", f"/v1/stream/{stream}?offset=-1", bearer(f"read:v1/{stream}"))
    times = way("GET", f"/v1/times?stream=/v1/stream/{stream}", bearer(f"read:v1/{stream}"))
    assert first.headers["cache-control"] == times.headers["cache-control"] == "private, no-cache"
    target = f"/v1/stream/{stream}?offset=-1&cursor={first.headers['stream-cursor']}"
    answer = way("GET", target, bearer(f"read:v1/{stream}"))
    assert answer.headers["cache-control"] == "private, max-age=60, stale-while-revalidate=300"
    has = bearer(f"read:v1/{stream}") | {"If-None-Match": answer.headers["etag"]}
    unchanged = way("GET", target, has)
    assert (unchanged.status, unchanged.headers["cache-control"]) == (304, answer.headers["cache-control"])


def test_an_event_source_may_send_its_token_in_the_url(way: Way, stream: str) -> None:
    query = f"?offset=-1&live=sse&access_token={token(f'read:v1/{stream}')}"
    answer = way("GET", f"/v1/stream/{stream}{query}")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream"
    directives = answer.headers["cache-control"].split(", ")
    assert {"private", "no-store", "no-transform"} <= set(directives)


def test_no_other_request_may_send_its_token_in_the_url(way: Way, stream: str) -> None:
    """A URL is stored in histories and logs, so only a client that cannot send headers may put a token
    there."""
    for asked in ("GET", "GET &live=long-poll", "GET &live=SSE", "HEAD &live=sse", "POST &live=sse"):
        method, _, live = asked.partition(" ")
        target = f"/v1/stream/{stream}?offset=-1{live}&access_token={token(ADMIN)}"
        answer = way(method, target, {"Content-Type": "text/plain"}, b"x")
        assert answer.status == 401, asked
        assert token(ADMIN) not in answer.body.decode()


def test_a_token_that_is_sent_twice_gets_401(way: Way, stream: str) -> None:
    query = f"?offset=-1&live=sse&access_token={token(ADMIN)}"
    assert way("GET", f"/v1/stream/{stream}{query}", bearer(ADMIN)).status == 401
    assert way("GET", f"/v1/stream/{stream}{query}&access_token={token(ADMIN)}").status == 401


def test_no_token_is_logged(
    way: Way, stream: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Valid or not, in the header or in the URL."""
    caplog.set_level(0)
    good, bad = token(f"read:v1/{stream}"), token(ADMIN, key="another-secret-of-more-than-thirty-two-bytes")
    for each in (good, bad):
        way("GET", f"/v1/stream/{stream}?offset=-1&live=sse&access_token={each}")
        way("GET", f"/v1/stream/{stream}", {"Authorization": f"Bearer {each}"})
    printed = capfd.readouterr()
    said = caplog.text + printed.out + printed.err
    assert not any(each.rpartition(".")[2] in said for each in (good, bad))


@pytest.fixture(params=list(WAYS))
def public_way(
    request: pytest.FixtureRequest, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> object:
    """Everybody may read the plain surface."""
    monkeypatch.setenv("PUBLIC_READ_BUCKETS", "other, v1")
    with WAYS[request.param](Settings.from_environment(os.environ)) as opened:
        yield opened


def test_everybody_reads_a_public_bucket_and_a_token_writes(world: World, public_way: Way, name: str) -> None:
    path = f"/v1/stream/{name}"
    text = {"Content-Type": "text/plain"}
    assert public_way("PUT", path, text).status == 401
    assert public_way("PUT", path, text | bearer("read:v1")).status == 403
    assert public_way("PUT", path, text | bearer(f"write:v1/{name}"), b"x").status == 201
    for headers in ({}, bearer("")):
        answer = public_way("GET", f"{path}?offset=-1", headers)
        assert (answer.status, answer.body) == (200, b"x")
        assert answer.headers["cache-control"].startswith("public")
    assert public_way("GET", path, {"Authorization": "Bearer wrong"}).status == 401
    assert public_way("POST", path, text, b"y").status == 401
    assert public_way("DELETE", path, bearer(f"write:v1/{name}")).status == 403
    assert public_way("GET", f"{path}/never").status == 404


def test_no_cache_may_keep_a_response_to_a_url_with_a_token(public_way: Way, name: str) -> None:
    path = f"/v1/stream/{name}"
    public_way("PUT", path, {"Content-Type": "text/plain"} | bearer(ADMIN))
    answer = public_way("GET", f"{path}?offset=-1&live=sse&access_token={token('')}")
    assert answer.status == 200
    assert "private" in answer.headers["cache-control"]


def test_changes_and_refusals_name_an_author(way: Way, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """By the token's subject and id and the key's, never by the token. An append alone is not told."""
    caplog.set_level("INFO", "tidemark.audit")
    path, kind = f"/v1/stream/{name}", {"Content-Type": "text/plain"}
    who = bearer("read:* write:* manage:*", sub="alice", jti="t-1", kid="k-1")
    other = bearer("write:v1/other", sub=["odd"])
    way("PUT", path, who | kind)
    way("POST", path, who | kind, b"x")
    assert way("POST", "/v1/streams", who | kind, b"x").status == 405
    way("POST", path, who | {"Stream-Closed": "true"})
    way("DELETE", path, other)
    way("GET", path, other)
    way("DELETE", path, who)
    bucket = f"audited-{uuid4().hex}"
    stream, upload = f"/{bucket}/run", f"/{bucket}/run/snapshot/{render_offset(1)}/upload"
    way("PUT", f"/{bucket}", who)
    way("PUT", stream, who | kind, b"x")
    way("POST", stream, who | kind, b"x")
    way("POST", upload, who | kind)
    way("GET", f"{stream}?offset=-1&live=sse", other)
    for _ in range(2):  # The first one creates the stream.
        way("POST", f"{path}/first", who | kind | {"Stream-Create": ""}, b"x")
    lines = [each.getMessage() for each in caplog.records if each.name == "tidemark.audit"]
    told = [json.loads(line.removeprefix("audit ")) for line in lines]
    alice, odd = ("alice", "t-1", "k-1"), ("['odd']", None, None)
    assert [
        (each["method"], each["path"], each["status"], (each["subject"], each["token_id"], each["key_id"]))
        for each in told
    ] == [
        ("PUT", path, 201, alice),
        ("POST", path, 204, alice),
        ("DELETE", path, 404, odd),
        ("GET", path, 404, odd),
        ("DELETE", path, 204, alice),
        ("PUT", f"/{bucket}", 201, alice),
        ("PUT", stream, 201, alice),
        ("POST", upload, 201, alice),
        ("GET", stream, 404, odd),
        ("POST", f"{path}/first", 204, alice),
    ]
    assert who["Authorization"].removeprefix("Bearer ") not in caplog.text

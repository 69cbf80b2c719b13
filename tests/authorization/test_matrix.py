"""Every operation of the application with every right, and what a scope covers."""

import itertools
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.answers import Answer
from tests.authorization.tokens import ADMIN, bearer
from tests.authorization.ways import Way
from tests.http.asgi import JSON, TEXT
from tests.http.published import application, operations
from tidemark.protocol.authorization import RequiredScope, Right, Target, parse_scopes
from tidemark.protocol.errors import StreamNotFound
from tidemark.subscriptions import lifecycle

RIGHTS = ("read", "write", "manage")
POOL = {"type": "pull-wake", "pattern": "t/*", "wake_stream": "t/wake"}
AT = f"{5:016d}"
_serial = itertools.count(1)


# --- every operation --------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """`rights` are those of which any is enough, on `target`. `also` is what else it takes to succeed."""

    target: str
    rights: str
    succeeds: int
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = b""
    also: str = ""


PLAIN, IN_BUCKET, BUCKET, SUBSCRIPTION = "v1/{n}*", "{n}/run*", "{n}", "v1/__ds/subscriptions/{n}*"
#: `{n}` is a bucket, a stream of the plain surface, and a subscription. The bucket has the stream `run`.
OPERATIONS = {
    "HEAD /v1/stream/{n}": Operation(PLAIN, "read", 200),
    "GET /v1/stream/{n}": Operation(PLAIN, "read", 200),
    "POST /v1/stream/{n}": Operation(PLAIN, "write", 204, TEXT, b"more"),
    "POST /v1/stream/{n}/first": Operation(PLAIN, "write", 204, TEXT | {"Stream-Create": ""}, b"a"),
    "PUT /v1/stream/{n}": Operation(PLAIN, "write manage", 200, TEXT),
    "PUT /v1/stream/{n}/new": Operation(PLAIN, "write manage", 201, TEXT),
    "DELETE /v1/stream/{n}": Operation(PLAIN, "manage", 204),
    "HEAD /{n}/run": Operation(IN_BUCKET, "read", 200),
    "GET /{n}/run?offset=now": Operation(IN_BUCKET, "read", 200),
    "POST /{n}/run": Operation(IN_BUCKET, "write", 204, TEXT, b"more"),
    "PUT /{n}/run-new": Operation(IN_BUCKET, "write manage", 201, TEXT),
    "DELETE /{n}/run": Operation(IN_BUCKET, "manage", 204),
    "GET /{n}/run/snapshot": Operation(IN_BUCKET, "read", 307),
    f"GET /{{n}}/run/snapshot/{AT}": Operation(IN_BUCKET, "read", 200),
    f"PUT /{{n}}/run/snapshot/{AT}": Operation(IN_BUCKET, "manage", 204, TEXT, b"folded"),
    f"DELETE /{{n}}/run/snapshot/{AT}": Operation(IN_BUCKET, "manage", 409),
    f"POST /{{n}}/run/snapshot/{AT}/upload": Operation(IN_BUCKET, "manage", 201),
    "GET /{n}/run/bootstrap": Operation(IN_BUCKET, "read", 200),
    "GET /{n}": Operation(BUCKET, "read", 200),
    "PUT /{n}": Operation(BUCKET, "manage", 409),
    "DELETE /{n}": Operation(BUCKET, "manage", 409),
    "GET /{n}/streams": Operation(BUCKET, "read", 200),
    "GET /v1/streams?prefix={n}": Operation(PLAIN, "read", 200),
    "GET /v1/buckets": Operation("*", "read", 200),
    "GET /v1/stats?stream=/v1/stream/{n}": Operation(PLAIN, "read", 200),
    "GET /v1/start?last=1&stream=/v1/stream/{n}": Operation(PLAIN, "read", 200),
    "GET /v1/times?stream=/v1/stream/{n}": Operation(PLAIN, "read", 200),
    "GET /v1/stream/__ds/subscriptions?prefix={n}": Operation(SUBSCRIPTION, "write manage", 200),
    "PUT /v1/stream/__ds/subscriptions/{n}": Operation(
        SUBSCRIPTION, "manage", 200, JSON, POOL, also="read:v1/t/* write:v1/t/wake"
    ),
    "GET /v1/stream/__ds/subscriptions/{n}": Operation(SUBSCRIPTION, "write manage", 200),
    "DELETE /v1/stream/__ds/subscriptions/{n}": Operation(SUBSCRIPTION, "manage", 204),
    "POST /v1/stream/__ds/subscriptions/{n}/streams": Operation(
        SUBSCRIPTION, "manage", 204, JSON, {"streams": ["t/a"]}, also="read:v1/t/*"
    ),
    "DELETE /v1/stream/__ds/subscriptions/{n}/streams/t/a": Operation(SUBSCRIPTION, "manage", 204),
    "POST /v1/stream/__ds/subscriptions/{n}/wake": Operation(SUBSCRIPTION, "manage", 409),
    "POST /v1/stream/__ds/subscriptions/{n}/claim": Operation(
        SUBSCRIPTION, "write manage", 409, JSON, {"worker": "w"}
    ),
    # It is no shared subscription: with the right, that is the refusal.
    "POST /v1/stream/__ds/subscriptions/{n}/take": Operation(
        SUBSCRIPTION, "write manage", 400, JSON, {"worker": "w"}
    ),
    "POST /v1/stream/__ds/subscriptions/{n}/done": Operation(
        SUBSCRIPTION, "write manage", 400, JSON, {"worker": "w"}
    ),
}
#: They need a right, but none to what is stored: `observability/` tries the numbers, and below are `me` and
#: `read`, whose body has the names.
OF_THE_SERVER = {"/v1/metrics", "/v1/rates", "/v1/traffic", "/v1/me", "/v1/read"}


def test_each_operation_that_needs_a_right_is_tried() -> None:
    """A stream's path stands for its alias."""
    named = [name.partition("?")[0].format(n="name").split(" ") for name in OPERATIONS]
    scopes = [(method, {"type": "http", "path": path, "raw_path": path.encode()}) for method, path in named]
    tried = {(method, application().look_up(scope).path) for method, scope in scopes}
    for each in operations():
        place = each.path.replace("/v1/streams/{", "/v1/stream/{")
        if each.rights and place not in OF_THE_SERVER:
            assert (each.method, place) in tried


@pytest.fixture(autouse=True)
def room_for_all_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their subscriptions have one table and one pattern."""
    monkeypatch.setattr(lifecycle, "MAX_OF_A_STREAM", 10_000)


def make_scene(way: Way) -> str:
    name = f"bucket-{next(_serial)}"
    for target, headers, body in (
        (f"/v1/stream/{name}", TEXT, b"a line"),
        (f"/{name}", {}, b""),
        (f"/{name}/run", TEXT, b"12345"),
        (f"/{name}/run/snapshot/{AT}", TEXT, b"folded"),
        (f"/v1/stream/__ds/subscriptions/{name}", JSON, json.dumps(POOL).encode()),
    ):
        assert way("PUT", target, headers | bearer(ADMIN), body).status in {201, 204}
    return name


def state(way: Way, name: str) -> list[Answer]:
    places = (f"/v1/stream/{name}", f"/{name}", f"/{name}/run/bootstrap", f"/v1/stream/{name}/new")
    subscription = f"/v1/stream/__ds/subscriptions/{name}"
    return [way("GET", place, bearer(ADMIN)) for place in (*places, subscription)]


def do(way: Way, title: str, name: str, authorization: dict[str, str]) -> Answer:
    operation, (method, target) = OPERATIONS[title], title.format(n=name).split(" ")
    body = operation.body if isinstance(operation.body, bytes) else json.dumps(operation.body).encode()
    return way(method, target, operation.headers | authorization, body)


@pytest.mark.parametrize("title", OPERATIONS)
def test_an_operation_requires_its_right(way: Way, title: str) -> None:
    """With it the operation succeeds. A token that may read gets 403; every other one gets 404, and without
    a token it is 401. What is refused changes nothing."""
    operation, name = OPERATIONS[title], make_scene(way)
    before = state(way, name)
    for right in (None, "fork", *RIGHTS):
        scope = f"{right}:{operation.target.format(n=name)} {operation.also}"
        answer = do(way, title, name, bearer(scope) if right else {})
        if right in operation.rights.split():
            assert answer.status == operation.succeeds, (right, answer)
            assert "public" not in answer.headers.get("cache-control", "")
            name = make_scene(way)
            before = state(way, name)
        else:
            assert answer.status == {None: 401, "read": 403}.get(right, 404), (right, answer)
            assert state(way, name) == before


@pytest.mark.parametrize("title", OPERATIONS)
def test_what_is_private_gets_the_response_of_what_is_missing(way: Way, title: str) -> None:
    """Header for header. Without a token too, and for a reader where nothing is there."""
    operation, name = OPERATIONS[title], make_scene(way)
    missing = f"never-{name}"
    elsewhere = bearer("read:v1/elsewhere write:other/* manage:v1/aut")
    private = do(way, title, name, elsewhere)
    assert (private.status, private) == (404, do(way, title, missing, elsewhere))
    unknown = do(way, title, name, {})
    assert (unknown.status, unknown) == (401, do(way, title, missing, {}))
    assert unknown.headers["www-authenticate"] == 'Bearer realm="tidemark"'
    assert unknown.headers["cache-control"] == "no-store"
    if operation.rights == "read" and operation.target in {PLAIN, BUCKET} and "prefix" not in title:
        truly = do(way, title, missing, bearer(f"read:{operation.target.format(n=missing)}"))
        assert truly == private


def test_what_has_nothing_of_any_stream_needs_no_token(way: Way) -> None:
    below = ("health", "openapi.json", "console", "docs", "socket.js", "proxy.js", "stream/__ds/jwks.json")
    for place in ("/", "/favicon.ico", *(f"/v1/{each}" for each in below)):
        answer = way("GET", place)
        assert answer.status in {200, 204}, place
        assert "private" not in answer.headers["cache-control"]
    preflight = way("OPTIONS", "/v1/stream/x", {"Origin": "https://app.example"})
    assert preflight.status == 204
    assert "Authorization" in preflight.headers["access-control-allow-headers"]


@pytest.mark.parametrize(
    ("method", "path", "scope", "status"),
    [
        ("PATCH", "/v1/stream/x", "", 404), ("PATCH", "/v1/stream/x", "manage:v1/x", 405),
        ("GET", "/v1", "read:*", 404), ("GET", "/v1/stream/", "read:*", 400),
        ("GET", "/v1/stream/a/../b", "read:*", 400), ("GET", "/v1/stream/__ds/x", "read:* manage:*", 404),
        ("GET", "/v1/console/nothing.js", "", 404), ("GET", "/v1/stats", "read:*", 400),
        ("GET", "/v1/stats?stream=x", "read:*", 400), ("HEAD", "/v1/streams", "read:v1/control/*", 404),
        ("GET", "/bucket/streams?prefix=ru", "read:bucket/run*", 404),
        ("GET", "/v1/stream/__ds/subscriptions?prefix=a", "write:v1/__ds/subscriptions/ab*", 404),
    ],
)  # fmt: skip
def test_other_paths_and_more_than_a_scope_covers_are_closed(
    way: Way, method: str, path: str, scope: str, status: int
) -> None:
    assert way(method, path, bearer(scope)).status == status


def test_a_bulk_read_has_what_the_token_may_read(way: Way) -> None:
    names = [make_scene(way), make_scene(way), "missing"]
    places = [f"/v1/stream/{name}" for name in names] + [f"/{name}/run" for name in names]
    body = json.dumps({"reads": [{"stream": place} for place in places]}).encode()
    for scope in (f"read:v1/{names[0]} read:{names[1]}", f"write:v1/* read:v1/{names[1]}", "write:v1/*", ""):
        token = bearer(scope) if scope else {}
        pages = json.loads(way("POST", "/v1/read", JSON | token, body).body)["pages"]
        alone = [way("GET", place, token) for place in places]
        assert [page["status"] for page in pages] == [each.status for each in alone]
        errors = [json.loads(each.body)["error"] for each in alone if each.status != 200]
        assert [page["error"] for page in pages if page["status"] != 200] == errors


def test_me_returns_the_scopes_of_the_token(way: Way) -> None:
    scope = "read:v1/a%20b/* write:agents manage:v1/exact other:words"
    assert json.loads(way("GET", "/v1/me", bearer(scope)).body) == {
        "authorization": True,
        "token": True,
        "scopes": ["read:v1/a%20b/*", "write:agents", "manage:v1/exact"],
    }
    assert json.loads(way("GET", "/v1/me").body) == {"authorization": True, "token": False, "scopes": []}


# --- what a scope covers ----------------------------------------------------------------

TARGETS = {
    "stream": Target("v1", "auth/run"),
    "listing": Target("v1", "auth/", is_prefix=True),
    "bucket": Target("v1"),
    "server": Target(None),
}


@pytest.mark.parametrize(
    ("scope", "covered"),
    [
        ("read:*", "stream listing bucket server"), ("read:v1", "stream listing bucket"),
        ("read:v1/*", "stream listing bucket"), ("openid read:v1 profile", "stream listing bucket"),
        (["openid", "read:v1"], "stream listing bucket"), ("read:v1/auth/*", "stream listing"),
        ("read:v1/aut*", "stream listing"), ("read:v1/%61uth/*", "stream listing"),
        ("write:v1 read:v1/auth/*", "stream listing"), ("read:v1/auth/r*", "stream"),
        ("read:v1/auth/run", "stream"),
        *[(scope, "") for scope in ("read:v1/auth/", "read:v1/auth", "read:v1/other/*", "read:v2/*")],
        *[(scope, "") for scope in ("read:%2A", "read:v1/", "read:", "read", ":v1", "READ:v1", "write:*")],
        *[(scope, "") for scope in ("read:*/auth/*", "read:v1/a*h/*", "read:v1/auth/%2A")],
        *[(scope, "") for scope in ("", None, 17, [["read:*"], 1, None], {"read:*": True})],
    ],
    ids=str,
)  # fmt: skip
def test_a_scope_names_everything_a_bucket_a_prefix_or_a_stream(scope: object, covered: str) -> None:
    found = []
    for name, target in TARGETS.items():
        with suppress(StreamNotFound):
            parse_scopes(scope).check(RequiredScope(target, frozenset({Right.READ})))
            found.append(name)
    assert " ".join(found) == covered


def test_a_right_covers_every_encoding_of_a_name(way: Way, stream: str) -> None:
    """One stream has one right, however its name is written."""
    encoded = stream.replace("a", "%61")
    assert way("GET", f"/v1/stream/{encoded}", bearer(f"read:v1/{stream}")).status == 200
    assert way("GET", f"/v1/stream/{encoded}", bearer("read:v1/other/*")).status == 404


@pytest.mark.parametrize(
    ("target", "source", "status"),
    [
        ("write", ["read", "write"], 201),
        ("write", ["read", "manage"], 201),
        ("manage", ["read", "fork"], 201),
        # A fork would keep the owner from using the name again.
        ("write", ["read"], 403),
        ("read", ["read", "write"], 403),
        ("write", ["write"], 404),
        ("write", ["fork"], 404),
        ("write", [], 404),
    ],
    ids=str,
)
def test_a_fork_requires_read_and_a_right_to_hold_its_source(
    way: Way, stream: str, target: str, source: list[str], status: int
) -> None:
    scope = " ".join([f"{target}:v1/{stream}/fork", *(f"{right}:v1/{stream}" for right in source)])
    fork = {"Stream-Forked-From": f"/v1/stream/{stream}"}
    answer = way("PUT", f"/v1/stream/{stream}/fork", fork | bearer(scope))
    assert answer.status == status
    if status == 404:
        # Readable, and truly missing: the words are the same.
        never = {"Stream-Forked-From": f"/v1/stream/{stream}/never"}
        scope += f" read:v1/{stream}/never fork:v1/{stream}/never"
        assert way("PUT", f"/v1/stream/{stream}/fork", never | bearer(scope)) == answer


def test_a_404_says_that_the_right_may_be_missing(way: Way, name: str) -> None:
    """The hint to create the stream with PUT would mislead a client whose PUT was refused."""
    words = "Stream does not exist, or this token has no right to it"
    for scope in ("write:elsewhere", "read:v1"):
        assert way("GET", f"/v1/stream/{name}", bearer(scope)).error == words
    words = "Bucket does not exist, or this token has no right to it"
    for scope in ("write:v1", "read:*"):
        assert way("GET", "/no-such-bucket", bearer(scope)).error == words


def test_a_take_requires_the_right_to_read_the_stream(way: Way) -> None:
    name = make_scene(way)
    shared, body = f"/v1/stream/__ds/subscriptions/{name}-shared", {"type": "shared", "streams": [name]}
    assert way("PUT", shared, JSON | bearer(ADMIN), json.dumps(body).encode()).status == 201
    work = f"write:v1/__ds/subscriptions/{name}*"
    for scope, status in ((work, 404), (f"{work} read:v1/{name}", 200)):
        assert way("POST", f"{shared}/take", JSON | bearer(scope), b'{"worker": "w"}').status == status

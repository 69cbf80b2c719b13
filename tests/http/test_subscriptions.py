"""The control surface of subscriptions (§6, §7): bodies, statuses and codes."""

import asyncio
import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import jsonschema_rs
import pytest
from starlette.requests import Request

from tests.answers import Answer
from tests.http.asgi import JSON, Door
from tests.http.published import openapi_document
from tidemark.http import subscriptions
from tidemark.http.subscriptions import jwks_url
from tidemark.protocol.errors import Busy
from tidemark.subscriptions import lifecycle, storage

_serial = itertools.count(1)


@pytest.fixture
def name() -> str:
    return f"sub-{next(_serial)}"


@pytest.fixture
def hooked(door: Door, tmp_path: Path) -> Door:
    """A server that signs webhooks, which this machine alone can reach."""
    return door.configured(webhook_keys=str(tmp_path), public_url="http://127.0.0.1:4437")


def at(name: str, below: str = "") -> str:
    return f"/v1/stream/__ds/subscriptions/{quote(name, safe='')}{below}"


def send(door: Door, method: str, target: str, body: Any, token: str | None = None) -> Answer:
    headers = JSON | ({"Authorization": f"Bearer {token}"} if token else {})
    return door(method, target, headers, body if isinstance(body, bytes) else json.dumps(body).encode())


def pool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "pull-wake", "pattern": f"{name}/*", "wake_stream": "wake/pool"} | more


IDLE = {"state": "idle", "generation": 0, "attempts": 0}
IDLE |= dict.fromkeys(("next_attempt_at", "holder", "lease_until", "last_delivery_at"))


def append(door: Door, path: str) -> None:
    door.put(f"/v1/stream/{path}", JSON)
    assert door.post(f"/v1/stream/{path}", JSON, b"1").status == 204


def test_claim_ack_and_release(door: Door, name: str) -> None:
    send(door, "PUT", at(name), pool(name, streams=[f"{name}/a"]))
    nothing = send(door, "POST", at(name, "/claim"), {"worker": "w1"})
    assert (nothing.status, nothing.json["error"]["code"]) == (409, "NO_PENDING_WORK")
    append(door, f"{name}/a")
    claimed = send(door, "POST", at(name, "/claim"), {"worker": "w1"}).json
    assert claimed["generation"] == 1
    assert claimed["lease_ttl_ms"] == 30_000
    [stream] = claimed["streams"]
    found = (stream["path"], stream["tail_offset"], stream["has_pending"])
    assert found == (f"{name}/a", "0000000000000002", True)
    busy = send(door, "POST", at(name, "/claim"), {"worker": "w2"}).json["error"]
    assert busy == busy | {"code": "ALREADY_CLAIMED", "current_holder": "w1", "generation": 1}
    wake = {"wake_id": claimed["wake_id"], "generation": 1}
    beyond = wake | {"acks": [{"stream": f"{name}/a", "offset": "0000000000000003"}]}
    answer = send(door, "POST", at(name, "/ack"), beyond, claimed["token"])
    assert (answer.status, answer.json["error"]["code"]) == (409, "INVALID_OFFSET")
    done = wake | {"acks": [{"path": f"{name}/a", "offset": stream["tail_offset"]}], "done": True}
    acked = send(door, "POST", at(name, "/ack"), done, claimed["token"])
    assert acked.json == {"ok": True, "next_wake": False}
    fenced = send(door, "POST", at(name, "/ack"), done, claimed["token"])
    assert (fenced.status, fenced.json["error"]["code"]) == (409, "FENCED")
    append(door, f"{name}/a")
    again = send(door, "POST", at(name, "/claim"), {"worker": "w1"}).json
    wake = {"wake_id": again["wake_id"], "generation": again["generation"]}
    assert send(door, "POST", at(name, "/release"), wake, again["token"]).status == 204


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", {}, {"type": "x"}, {"type": "pull-wake"},
        {"type": "pull-wake", "pattern": "a/*"}, {"type": "pull-wake", "wake_stream": "w"},
        {"type": "webhook", "pattern": "a/*"}, {"type": "webhook", "pattern": "a/*", "webhook": {}},
        {"type": "webhook", "pattern": "a/*", "webhook": "https://example.com"}, pool("a", lease_ttl_ms=999),
        pool("a", lease_ttl_ms="30000"), pool("a", lease_ttl_ms=True), pool("a", streams=[1]),
        pool("a", pattern=5), pool("a", description={}), pool("a", streams=["wake/pool"]),
        pool("a", streams=["__ds/x"]), b'{"type": "pull-wake", "pattern": "\xff"}',
        b'{"type": "pull-wake", "pattern": "\\ud800", "wake_stream": "w"}',
    ],
    ids=str,
)  # fmt: skip
def test_an_invalid_creation_gets_400_with_the_reason(door: Door, name: str, body: Any) -> None:
    answer = send(door, "PUT", at(name), body)
    assert (answer.status, answer.json["error"]["code"]) == (400, "INVALID_REQUEST"), answer
    assert len(answer.json["error"]["message"]) > 10
    assert door.get(at(name)).status == 404


@pytest.mark.parametrize("below", ["/ack", "/callback", "/release"])
@pytest.mark.parametrize("token", [None, "x", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0."])
def test_wake_calls_without_token_get_401(
    door: Door, hooked: Door, name: str, below: str, token: str
) -> None:
    if below == "/callback":
        hook = {"type": "webhook", "pattern": "q/*", "webhook": {"url": "http://127.0.0.1:1/"}}
        assert send(hooked, "PUT", at(name), hook).status == 201
    else:
        send(door, "PUT", at(name), pool(name))
    answer = send(door, "POST", at(name, below), {"wake_id": "w", "generation": 1}, token)
    assert (answer.status, answer.json["error"]["code"]) == (401, "TOKEN_INVALID")
    assert answer["www-authenticate"]


def test_a_path_that_no_stream_can_have_gets_400_wherever_it_is_sent(door: Door, name: str) -> None:
    """DynamoDB takes no key of that length."""
    send(door, "PUT", at(name), pool(name, streams=[f"{name}/a"]))
    append(door, f"{name}/a")
    claimed = send(door, "POST", at(name, "/claim"), {"worker": "w1"}).json
    wake = {"wake_id": claimed["wake_id"], "generation": 1}
    wrong = wake | {"acks": [{"stream": "x" * 1_001, "offset": "0000000000000001"}]}
    for answer in (
        send(door, "POST", at(name, "/ack"), wrong, claimed["token"]),
        door.get(at(name, f"?after={'x' * 1_001}")),
    ):
        assert (answer.status, answer.json["error"]["code"]) == (400, "INVALID_REQUEST")
        assert "too long" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("method", "below", "status", "allowed"),
    [
        ("GET", "other", 404, None),
        ("PUT", "subscriptions/", 404, None),
        ("POST", "subscriptions/x", 405, "GET, HEAD, PUT, DELETE, OPTIONS"),
        ("GET", "subscriptions/x/claim", 405, "POST, OPTIONS"),
        ("PATCH", "subscriptions/x/streams/a", 405, "DELETE, OPTIONS"),
        ("HEAD", "subscriptions/x", 404, None),
        ("HEAD", "subscriptions/x/claim", 405, "POST, OPTIONS"),
    ],
)
def test_an_unknown_path_or_method_gets_an_error_with_a_code(
    door: Door, method: str, below: str, status: int, allowed: str | None
) -> None:
    """To HEAD without its body."""
    answer = send(door, method, f"/v1/stream/__ds/{below}", {})
    assert (answer.status, answer["allow"], answer["cache-control"]) == (status, allowed, "no-store")
    if method != "HEAD":
        assert answer.json["error"]["code"]
        assert (allowed or "") in answer.json["error"]["message"]


def test_a_stream_is_added_by_its_path_and_removed_by_its_encoded_path(door: Door, name: str) -> None:
    send(door, "PUT", at(name), pool(name))
    assert send(door, "POST", at(name, "/streams"), {"streams": ["m/é b?", "m/c"]}).status == 204
    assert send(door, "POST", at(name, "/streams"), {"streams": []}).status == 400
    assert door.delete(at(name, f"/streams/{quote('m/é b?', safe='')}")).status == 204
    assert door.delete(at(name, "/streams/m/c")).status == 204
    assert door.delete(at(name, "/streams/absent")).status == 204
    assert door.get(at(name)).json["streams"] == []


@pytest.mark.parametrize("own", ["wake/own", "letters/own"])
def test_a_stream_that_the_subscription_writes_cannot_be_added(door: Door, name: str, own: str) -> None:
    letters = {"max_attempts": 1, "dead_letter_stream": "letters/own"}
    send(door, "PUT", at(name), pool(name, wake_stream="wake/own", **letters))
    refused = send(door, "POST", at(name, "/streams"), {"streams": ["fine", f"/{own}/"]})
    assert (refused.status, repr(own) in refused.json["error"]["message"]) == (400, True)
    assert door.get(at(name)).json["streams"] == []


def test_a_stream_has_a_limit_of_followers_by_name_and_by_pattern(
    door: Door, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "MAX_OF_A_STREAM", 4)
    hot, wide = f"{name}/hot", pool(name, pattern=f"{name}/**")
    named, exact = pool(name, pattern=None, streams=[hot]), pool(name, pattern=hot)
    for number, body in enumerate((named, exact, named, exact)):
        assert send(door, "PUT", at(f"{name}-{number}"), body).status == 201
    send(door, "PUT", at(f"{name}-other"), pool(name, pattern=f"{name}-other/*"))
    added = ("POST", at(f"{name}-other", "/streams"), {"streams": [hot]})
    for method, target, body in (*(("PUT", at(f"{name}-4"), each) for each in (named, exact, wide)), added):
        refused = send(door, method, target, body)
        error = refused.json["error"]
        assert (refused.status, error["code"]) == (429, "TOO_MANY_SUBSCRIPTIONS")
        assert (error["limit"], error["count"], repr(hot) in error["message"]) == (4, 4, True)
    append(door, hot)
    assert send(door, "PUT", at(f"{name}-4"), pool(name)).status == 429, "the pattern's stream is there"
    assert send(door, "PUT", at(f"{name}-4"), pool(name, pattern=f"{name}/*/x")).status == 201
    monkeypatch.setattr(lifecycle, "MAX_OF_A_STREAM", 3)
    assert send(door, "PUT", at(f"{name}-0"), named).status == 200, "those beyond the limit go on"
    assert send(door, "POST", at(f"{name}-1", "/streams"), {"streams": [hot]}).status == 204


def test_a_long_list_of_streams_is_read_page_by_page(
    door: Door, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "PAGE", 2)
    send(door, "PUT", at(name), pool(name, streams=["a", "b", "c"]))
    first = door.get(at(name)).json
    rest = door.get(at(name, f"?after={first['streams_after']}")).json
    assert [[each["path"] for each in page["streams"]] for page in (first, rest)] == [["a", "b"], ["c"]]
    assert "streams_after" not in rest


@pytest.mark.parametrize("host", ["a.example", "[::1", "a:b:c", "\xe9"])
def test_without_a_public_url_keys_are_where_the_client_has_reached_the_server(door: Door, host: str) -> None:
    request = Request({"type": "http", "headers": [(b"host", host.encode("latin-1"))]})
    assert jwks_url(request, door.backend) == f"http://{host}/v1/stream/__ds/jwks.json"


def test_webhooks_are_signed_with_a_published_key(hooked: Door, name: str) -> None:
    hook = {"type": "webhook", "pattern": f"{name}/*", "webhook": {"url": "http://127.0.0.1:1/hook"}}
    made = send(hooked, "PUT", at(name), hook)
    assert made.status == 201
    signing = made.json["webhook"]["signing"]
    assert signing["jwks_url"] == "http://127.0.0.1:4437/v1/stream/__ds/jwks.json"
    published = hooked.get("/v1/stream/__ds/jwks.json")
    assert published["content-type"] == "application/jwk-set+json"
    assert published["cache-control"] == "public, max-age=300"
    assert signing["kid"] in {key["kid"] for key in published.json["keys"]}
    assert b"secret" not in made.body


def test_no_webhook_subscription_is_created_without_a_signing_key(
    hooked: Door, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery functions can read a key but not create one."""

    class NoKeys:
        def active(self, now_ms: int) -> None:
            raise Busy

    monkeypatch.setattr(subscriptions, "connect_signing_keys", lambda *_: NoKeys())
    hook = {"type": "webhook", "pattern": f"{name}/*", "webhook": {"url": "http://127.0.0.1:1/hook"}}
    assert send(hooked, "PUT", at(name), hook).status == 429
    monkeypatch.undo()
    assert hooked.get(at(name)).status == 404


def test_a_webhook_url_that_is_not_allowed_is_rejected(hooked: Door, door: Door, name: str) -> None:
    for url in ("http://10.0.0.1/hook", "https://169.254.169.254/", "https://localhost/", "ftp://a"):
        body = {"type": "webhook", "pattern": "a/*", "webhook": {"url": url}}
        answer = send(hooked, "PUT", at(name), body)
        assert (answer.status, answer.json["error"]["code"]) == (400, "WEBHOOK_URL_REJECTED")
    # Without a place for keys there are no webhooks, and elsewhere than on loopback no plain HTTP.
    body = {"type": "webhook", "pattern": "a/*", "webhook": {"url": "https://example.com/"}}
    assert send(door, "PUT", at(name), body).json["error"]["code"] == "INVALID_REQUEST"
    body = {"type": "webhook", "pattern": "a/*", "webhook": {"url": "http://127.0.0.1:1/"}}
    assert send(door, "PUT", at(name), body).json["error"]["code"] == "WEBHOOK_URL_REJECTED"


@pytest.mark.parametrize("slashed", ["a%2Fb", "a%2fclaim", "%2F", "a%2Fb/claim"])
def test_an_id_with_an_encoded_slash_gets_400_with_the_reason(door: Door, slashed: str) -> None:
    for method in ("PUT", "GET", "POST", "DELETE"):
        refused = send(door, method, f"/v1/stream/__ds/subscriptions/{slashed}", pool("a"))
        assert (refused.status, refused.json["error"]["code"]) == (400, "INVALID_REQUEST")
        assert "no slash" in refused.json["error"]["message"]


@pytest.mark.parametrize("sent", [{}, {"Content-Type": "application/x-www-form-urlencoded"}])
def test_a_body_of_another_type_gets_400_with_the_right_one(
    door: Door, name: str, sent: dict[str, str]
) -> None:
    """`curl -d` sends such a type."""
    send(door, "PUT", at(name), pool(name))
    refused = door("POST", at(name, "/claim"), sent, b'{"worker": "w"}')
    assert (refused.status, refused.json["error"]["code"]) == (400, "INVALID_REQUEST")
    assert "Content-Type: application/json" in refused.json["error"]["message"]


def test_a_body_over_the_limit_gets_413(door: Door, name: str) -> None:
    answer = door("PUT", at(name), JSON, [b"x" * 1024 * 1024] * 5)
    assert answer.status == 413


# --- the list, and waking at once (extensions) --------------------------------------


def test_subscriptions_are_listed_by_id_a_page_at_a_time(door: Door, name: str) -> None:
    for each in ("c", "a", "b"):
        send(door, "PUT", at(f"{name}-{each}"), pool(name))
    first = door.get(f"/v1/stream/__ds/subscriptions?prefix={name}-&limit=2")
    assert first["Cache-Control"] == "no-store"
    assert [each["id"] for each in first.json["subscriptions"]] == [f"{name}-a", f"{name}-b"]
    assert first.json["subscriptions"][0]["wake"] == IDLE
    assert "streams" not in first.json["subscriptions"][0], "there may be very many"
    assert (first.json["has_more"], first.json["next_cursor"]) == (True, f"{name}-b")
    rest = door.get(f"/v1/stream/__ds/subscriptions?prefix={name}-&after={name}-b").json
    assert [each["id"] for each in rest["subscriptions"]] == [f"{name}-c"]
    assert (rest["has_more"], rest["next_cursor"]) == (False, None)
    family = f"{name}-c\U0001f468\u200d\U0001f469"
    send(door, "PUT", at(family), pool(name))
    listed = door.get(f"/v1/stream/__ds/subscriptions?prefix={quote(family)}&after={name}-c").json
    assert [each["id"] for each in listed["subscriptions"]] == [family]
    door.delete(at(family))
    door.delete(at(f"{name}-c"))
    assert door.get(f"/v1/stream/__ds/subscriptions?prefix={name}-c").json["subscriptions"] == []


def test_a_page_of_subscriptions_ends_where_their_reads_would_cost_too_much(
    door: Door, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door.process.stores, "listed_at_once", 2)
    for each in "abc":
        send(door, "PUT", at(f"{name}-{each}"), pool(name))
    door.process.calls.taken()
    page = door.get(f"/v1/stream/__ds/subscriptions?prefix={name}-").json
    assert door.process.calls.taken() == {"Query": 1, "GetItem": 2}
    assert (len(page["subscriptions"]), page["next_cursor"]) == (2, f"{name}-b")


def test_a_listing_goes_on_after_a_page_whose_subscriptions_have_all_ended(
    door: Door, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("a", "b", "c"):
        send(door, "PUT", at(f"{name}-{each}"), pool(name))
    monkeypatch.setattr(storage, "load_subscription", lambda *_: None)
    page = door.get(f"/v1/stream/__ds/subscriptions?prefix={name}-&limit=2").json
    assert page["subscriptions"] == []
    assert (page["has_more"], page["next_cursor"]) == (True, f"{name}-b")


def test_a_subscription_with_pending_work_can_be_woken_at_once(door: Door, name: str) -> None:
    send(door, "PUT", at(name), pool(name, streams=[f"{name}/a"]))
    nothing = send(door, "POST", at(name, "/wake"), b"")
    assert (nothing.status, nothing.json["error"]["code"]) == (409, "NO_PENDING_WORK")
    append(door, f"{name}/a")
    woken = send(door, "POST", at(name, "/wake"), b"")
    assert (woken.status, woken.json["state"], woken.json["generation"]) == (202, "delivering", 1)
    assert send(door, "POST", at(name, "/claim"), {"worker": "w1"}).status == 200
    held = send(door, "POST", at(name, "/wake"), b"")
    assert (held.status, held.json["error"]["current_holder"]) == (409, "w1")
    wake = door.get(at(name)).json["wake"]
    assert (wake["state"], wake["holder"], wake["lease_until"][-1]) == ("claimed", "w1", "Z")
    assert datetime.fromisoformat(wake["last_delivery_at"]) < datetime.fromisoformat(wake["lease_until"])
    assert send(door, "POST", at("absent", "/wake"), b"").status == 404


def check_described(operation_id: str, answer: Answer) -> None:
    """The body is what the OpenAPI document says of this operation and status, and has no member more."""
    described = openapi_document()
    for schema in described["components"]["schemas"].values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    [operation] = [
        each
        for path in described["paths"].values()
        for each in path.values()
        if isinstance(each, dict) and each.get("operationId") == operation_id
    ]
    [content] = operation["responses"][str(answer.status)]["content"].values()
    schema = {**content["schema"], "components": described["components"]}
    assert schema.get("$ref"), "an object of which nothing is said"
    jsonschema_rs.validator_for(schema).validate(answer.json)


def test_answers_are_as_the_openapi_document_describes_them(hooked: Door, name: str) -> None:
    """Each that has a body: of a pull-wake subscription, and what only a webhook's has."""
    append(hooked, f"{name}/a")
    append(hooked, "wake/pool")
    check_described("createSubscription", send(hooked, "PUT", at(name), pool(name)))
    hooked.post(f"/v1/stream/{name}/a", JSON, b"2")
    claimed = send(hooked, "POST", at(name, "/claim"), {"worker": "w1"})
    check_described("claimWake", claimed)
    check_described("describeSubscription", hooked.get(at(name)))
    told = {key: claimed.json[key] for key in ("wake_id", "generation")}
    check_described(
        "ackWake", send(hooked, "POST", at(name, "/ack"), told | {"done": True}, claimed.json["token"])
    )
    check_described("wakeSubscription", send(hooked, "POST", at(name, "/wake"), b""))

    webhook = {"type": "webhook", "streams": ["x"], "webhook": {"url": "http://127.0.0.1:1/"}}
    check_described("createSubscription", send(hooked, "PUT", at(f"{name}-hook"), webhook))
    check_described("createSubscription", send(hooked, "PUT", at(f"{name}-hook"), webhook))
    check_described("listSubscriptions", hooked.get(f"/v1/stream/__ds/subscriptions?prefix={name}"))
    check_described("webhookKeys", hooked.get("/v1/stream/__ds/jwks.json"))
    fenced = send(hooked, "POST", at(name, "/ack"), told, claimed.json["token"])
    other = send(hooked, "PUT", at(name), webhook)
    send(hooked, "POST", at(name, "/claim"), {"worker": "w1"})
    for operation, conflict in (
        ("createSubscription", other),
        ("claimWake", send(hooked, "POST", at(name, "/claim"), {"worker": "w2"})),
        ("wakeSubscription", send(hooked, "POST", at(name, "/wake"), b"")),
        ("ackWake", fenced),
    ):
        assert conflict.status == 409, operation
        check_described(operation, conflict)
    answer = hooked.get(at(name))
    more = Answer(200, answer.headers, json.dumps(answer.json | {"more": 1}).encode())
    with pytest.raises(jsonschema_rs.ValidationError):
        check_described("describeSubscription", more)


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"key": "/k"}, "key needs a JSON stream"),
        ({"key": "k"}, "must be a JSON pointer"),
        ({"offset": "start"}, "offset must be -1"),
        ({"offset": "0000000000000099"}, "beyond the end"),
        ({"streams": ["notes", "other"]}, "has one stream, got 2"),
        ({"pattern": "n/*"}, "has no pattern"),
        ({"type": "pull-wake", "wake_stream": "w", "key": "/k"}, "has no key"),
    ],
)
def test_a_wrong_creation_says_what_would_be_right(door: Door, more: dict[str, Any], refusal: str) -> None:
    door.put("/v1/stream/notes", {"Content-Type": "text/plain"}, b"a")
    answer = send(door, "PUT", at("wrong"), {"type": "shared", "streams": ["notes"]} | more)
    assert 400 <= answer.status < 500
    assert refusal in str(answer.json)


def test_workers_over_http(door: Door, name: str) -> None:
    """Bytes are base64, text is text. A longer wait than a long-poll's, and no receipt, is refused."""

    def ask(which: str, call: str, **asked: object) -> Any:
        return send(door, "POST", at(name + which, call), {"worker": "w"} | asked).json

    for each, content_type, sent in (("t", "text/plain", "é".encode()), ("b", "application/x", b"\xff")):
        door.put(f"/v1/stream/{name}/{each}", {"Content-Type": content_type}, sent)
        shared = {"type": "shared", "streams": [f"{name}/{each}"], "offset": "-1"}
        assert send(door, "PUT", at(name + each), shared).status == 201
    [text], [binary] = ask("t", "/take")["messages"], ask("b", "/take", lease_seconds=1)["messages"]
    assert (text["data"], text["delivery"], text["offset"]) == ("é", 1, f"{2:016d}")
    assert (binary["data"], binary["encoding"]) == ("/w==", "base64")
    shown = door.get(at(name + "t")).json["shared"]
    assert shown.pop("oldest_lease_until").endswith("Z")
    counts = {"committed_offset": f"{0:016d}", "under_way": 1, "waiting": 0, "deliveries": 1}
    assert shown == {"key": None, "offset": "-1"} | counts
    assert ask("t", "/done", done=[text["receipt"]]) == {"late": []}
    assert "is not a receipt" in str(ask("t", "/done", done=["x"]))
    assert "less than or equal to 60" in str(ask("t", "/take", wait_seconds=99))
    assert "less than or equal to 1000" in str(ask("t", "/take", max_messages=1001))


def test_an_empty_take_waits_for_an_append_or_the_end_of_a_lease(tidemark_url: str) -> None:
    """A client that has left while it waited gets nothing."""
    stream, place = f"{tidemark_url}/v1/stream/waited", f"{tidemark_url}{at('waited')}"
    httpx.put(stream, headers=JSON).raise_for_status()
    httpx.put(place, json={"type": "shared", "streams": ["waited"]}).raise_for_status()
    asked = {"worker": "w", "wait_seconds": 20, "lease_seconds": 1}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{place}/take", json=asked, timeout=0.3)
    with ThreadPoolExecutor(1) as pool:
        for delivery in (1, 2):
            waiting = pool.submit(httpx.post, f"{place}/take", json=asked, timeout=60)
            time.sleep(0.3)
            if delivery == 1:
                httpx.post(stream, json=["late"]).raise_for_status()
            [message] = waiting.result().json()["messages"]
            assert (message["data"], message["delivery"]) == ("late", delivery)


def test_takes_of_each_event_loop_have_a_lock_of_their_own(server: Door) -> None:
    """The local gateway's environments share a backend: a lock of another loop cannot be waited for."""

    async def turn() -> asyncio.Lock:
        return server.backend.turn("s")

    with asyncio.Runner() as one, asyncio.Runner() as other:
        first, again, third = (runner.run(turn()) for runner in (one, one, other))
    assert first is again is not third

"""Which streams a pattern may cover, and what a wake's token opens. Rights are in `test_matrix.py`."""

import itertools
import json
from typing import Any

import pytest

from tests.answers import Answer
from tests.authorization.tokens import bearer
from tests.authorization.ways import Way
from tidemark.subscriptions import lifecycle

_serial = itertools.count(1)
JSON = {"Content-Type": "application/json"}
EVERYTHING = bearer("read:* write:* manage:*")


@pytest.fixture
def name() -> str:
    return f"sub-{next(_serial)}"


def ask(  # noqa: PLR0917 - a request has these parts
    way: Way, method: str, name: str, below: str, who: dict[str, str], body: Any = None
) -> Answer:
    target = f"/v1/stream/__ds/subscriptions/{name}{below}"
    return way(method, target, JSON | who, b"" if body is None else json.dumps(body).encode())


def pool(pattern: str | None = "t/*", wake_stream: str = "t/wake", **more: Any) -> dict[str, Any]:
    return {"type": "pull-wake", "pattern": pattern, "wake_stream": wake_stream} | more


def scopes(*words: str) -> dict[str, str]:
    return bearer(" ".join(words))


def managing(name: str, *more: str) -> dict[str, str]:
    return scopes(f"manage:v1/__ds/subscriptions/{name}", *more)


@pytest.mark.parametrize("below", ["/callback", "/%63allback", "/ack", "/release"])
def test_a_call_with_a_wake_token_needs_no_other_token(way: Way, name: str, below: str) -> None:
    """The path is compared decoded, as the routes see it. The error comes from the routes: it has a code."""
    refused = ask(way, "POST", name, below, {}, {"wake_id": "w", "generation": 1})
    assert json.loads(refused.body)["error"]["code"], refused.body


@pytest.mark.parametrize(
    ("granted", "body", "status"),
    [
        (["read:v1/t/*", "write:v1/t/wake"], pool(), 201),
        (["read:v1/t/*", "write:v1/t/*"], pool("t/*/**"), 201),
        (["read:v1", "write:v1"], pool("**"), 201),
        (["read:v1/t/*", "write:v1/t/wake"], pool("**"), 404),
        (["read:v1/t/*", "write:v1/t/wake"], pool("*/a"), 404),
        (["read:v1/t/*", "write:v1/t/wake"], pool("u/*"), 404),
        (["read:v1/t/*", "write:v1/t/wake"], pool("t/**"), 404),
        (["read:v1/t/*", "write:v1/t/wake"], pool(None, streams=["u/a"]), 404),
        (["read:v1/t/*", "write:v1/t/wake"], pool(None, streams=["t/a"]), 201),
        (["read:v1/t/*"], pool(), 403),
        (["read:v1/t/*", "write:v1/t/wake"], pool(max_attempts=3, dead_letter_stream="u"), 404),
        (["write:v1/t/*"], pool(), 404),
        ([], pool(), 404),
        (["manage:v1/t/*"], pool(), 404),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_subscription_requires_read_on_its_streams(
    way: Way, name: str, granted: list[str], body: dict[str, Any], status: int
) -> None:
    """And write on its wake stream."""
    assert ask(way, "PUT", name, "", managing(name, *granted), body).status == status


def test_streams_are_added_by_one_who_may_read_them(way: Way, name: str) -> None:
    assert ask(way, "PUT", name, "", EVERYTHING, pool()).status == 201
    added = {"streams": ["u/a"]}
    assert ask(way, "POST", name, "/streams", managing(name), added).status == 404
    assert ask(way, "POST", name, "/streams", managing(name, "read:v1/u/*"), added).status == 204


def test_a_wake_token_opens_the_calls_of_its_wake_and_nothing_else(way: Way, name: str) -> None:
    way("PUT", "/v1/stream/t/a", JSON | EVERYTHING)
    ask(way, "PUT", name, "", EVERYTHING, pool())
    way("POST", "/v1/stream/t/a", JSON | EVERYTHING, b"1")
    claimed = json.loads(ask(way, "POST", name, "/claim", EVERYTHING, {"worker": "w"}).body)
    token = {"Authorization": f"Bearer {claimed['token']}"}
    wake = {"wake_id": claimed["wake_id"], "generation": claimed["generation"]}
    for method, below in (("GET", ""), ("DELETE", ""), ("PUT", ""), ("POST", "/claim"), ("POST", "/streams")):
        assert ask(way, method, name, below, token, {}).status == 401
    assert way("GET", "/v1/stream/t/a", token).status == 401
    assert ask(way, "POST", name, "/ack", EVERYTHING, wake).status == 401
    assert ask(way, "POST", f"{name}-other", "/ack", token, wake).status == 404
    assert ask(way, "POST", name, "/ack", token, wake | {"done": True}).status == 200


def test_a_list_of_subscriptions_has_those_that_the_token_may_see(way: Way, name: str) -> None:
    """Reading the bucket's streams is no right to see where its webhooks are."""
    assert ask(way, "PUT", f"{name}-a", "", EVERYTHING, pool()).status == 201
    listing = "/v1/stream/__ds/subscriptions"
    assert way("GET", listing, scopes("read:v1")).status == 403
    tenant = scopes(f"write:v1/__ds/subscriptions/{name}-*")
    seen = way("GET", f"{listing}?prefix={name}-", tenant)
    assert [each["id"] for each in json.loads(seen.body)["subscriptions"]] == [f"{name}-a"]
    refused = way("GET", listing, tenant)
    assert (refused.status, "__ds/subscriptions/*" in refused.body.decode()) == (404, True)


def test_a_tenant_has_a_limit_of_subscriptions(way: Way, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token for all ids has none, nor has another tenant whose ids begin with other characters."""
    monkeypatch.setattr(lifecycle, "MAX_OF_A_PREFIX", 2)
    tenant, other = (scopes(f"manage:v1/__ds/subscriptions/{name}-{who}* read:v1 write:v1") for who in "ab")
    for number in range(2):
        assert ask(way, "PUT", f"{name}-a{number}", "", tenant, pool()).status == 201
    refused = ask(way, "PUT", f"{name}-a2", "", tenant, pool())
    assert (refused.status, json.loads(refused.body)["error"]["limit"]) == (429, 2)
    assert f"'{name}-a'" in refused.body.decode()
    assert ask(way, "PUT", f"{name}-a1", "", tenant, pool()).status == 200
    assert ask(way, "PUT", f"{name}-b0", "", other, pool()).status == 201
    assert ask(way, "PUT", f"{name}-a2", "", EVERYTHING, pool()).status == 201

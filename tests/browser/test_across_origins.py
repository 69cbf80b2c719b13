"""Pages of another origin: what a browser lets them send to streams, and see of the answers (CORS)."""

import json
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.authorization.tokens import SECRET, token
from tests.browser.chromium import NEEDS_CHROMIUM, opened
from tests.browser.writing import Written
from tests.conformance.servers import Server, running, tidemark_server

pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module", params=["asgi", "lambda"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("server")
    with running(tidemark_server(request.param, directory, ALLOW_ANONYMOUS="true")) as made:
        yield made


@pytest.fixture(scope="module")
def outcomes(server: Server) -> dict[str, Any]:
    url = f"{server.base_url}/v1/stream/across-{uuid.uuid4()}"
    with opened("cross-origin.html", {"url": url, "origin": server.base_url}) as page:
        reported: dict[str, Any] = page.report()
        return reported


SEEN = {
    "create": (201, {"location", "stream-next-offset", "content-type"}),
    "append": (200, {"producer-epoch", "producer-seq", "stream-next-offset"}),
    "append again": (204, {"producer-epoch", "producer-seq", "stream-next-offset"}),
    "append with a gap": (409, {"producer-expected-seq", "producer-received-seq"}),
    "read": (200, {"etag", "stream-next-offset", "stream-up-to-date", "cache-control", "server-timing"}),
    "read what it has": (304, {"etag", "stream-next-offset"}),
    "long-poll": (200, {"stream-cursor", "stream-next-offset", "stream-up-to-date"}),
    "metadata": (200, {"stream-next-offset", "stream-ttl", "content-type"}), "fork": (201, {"location"}),
    "close": (204, {"stream-closed", "stream-next-offset"}), "events": (200, {"content-type"}),
    "create of bytes": (201, {"stream-closed"}), "events of bytes": (200, {"stream-sse-data-encoding"}),
    "delete": (204, set()), "what is gone": (404, {"content-type"}), "health": (200, {"content-type"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_what_a_page_may_do_and_see(outcomes: dict[str, Any], name: str) -> None:
    """Every header that a client sends passes the preflight, and every one that it reads is exposed."""
    status, headers = SEEN[name]
    outcome = outcomes[name]
    assert outcome["status"] == status, outcome
    assert headers <= set(outcome["headers"]), outcome


def test_bodies_and_errors_can_be_read(outcomes: dict[str, Any]) -> None:
    """What went wrong, too: a page can tell its user."""
    assert json.loads(outcomes["read"]["body"]) == [{"from": "a page"}]
    assert "streamClosed" in outcomes["events"]["body"]
    assert json.loads(outcomes["what is gone"]["body"])["error"]
    assert json.loads(outcomes["append with a gap"]["body"])["error"]


def test_private_streams(tmp_path_factory: pytest.TempPathFactory) -> None:
    """An EventSource sends no headers, so the example page gives its token in the address; without one, or
    with one for other streams, it says why there is nothing to see."""
    directory = tmp_path_factory.mktemp("private")
    closed = tidemark_server("asgi", directory, AUTH_SECRET=SECRET)
    with running(closed) as server:
        stream = Written(server.port, "json", 3)
        writer = {"Authorization": f"Bearer {token('write:v1 manage:v1')}"}
        assert stream.send("PUT", headers=writer) == 201
        for body in stream.messages:
            assert stream.send("POST", body, writer) == 204
        assert stream.send("POST", headers=writer | {"Stream-Closed": "true"}) == 204
        url = quote(server.base_url + stream.path, safe="")
        shown = {
            "The stream is closed": f"&token={token('read:v1')}",
            "401": "",
            "404": f"&token={token('read:elsewhere')}",
        }
        for end, given in shown.items():
            with opened("watch.html", {"addresses": [f"/tail.html?url={url}{given}"], "end": end}) as page:
                [result] = page.report()
                messages = [json.loads(line) for line in result["messages"].splitlines()]
                expected = stream.messages if end.startswith("The stream") else []
                assert messages == [json.loads(each) for each in expected]

"""A server without keys answers to its own names, and takes writes of its own pages alone."""

import asyncio
from collections.abc import Iterator

import pytest
from starlette.responses import PlainTextResponse

from tests.authorization.tokens import SECRET
from tests.authorization.ways import Asgi
from tests.stack.gateway import behind
from tidemark.http.security.origin import own_pages_only
from tidemark.settings import InvalidSetting, Settings

STREAM = "/v1/stream/x"
OWN = "127.0.0.1:4437"


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


def server(runner: asyncio.Runner, **variables: str) -> Asgi:
    guards = own_pages_only(Settings.from_environment(variables))
    return Asgi(behind(PlainTextResponse("inside"), *guards), runner)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (OWN, 200), ("localhost", 200), ("LOCALHOST.:4437", 200), ("app.localhost:80", 200),
        ("[::1]:4437", 200), ("127.8.9.1", 200),
        ("evil.example:4437", 421), ("localhost.evil.example", 421), ("127.0.0.1.evil.example:4437", 421),
        ("evil.example@127.0.0.1", 421), ("notlocalhost", 421), ("192.168.0.9:4437", 421), ("0.0.0.0", 421),
        ("[fe80::1]:4437", 421), ("[::1.evil.example]", 421), ("", 421), (":4437", 421),
        ("é", 421),
    ],
)  # fmt: skip
def test_it_answers_to_loopback_names_alone(runner: asyncio.Runner, host: str, status: int) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        answer = server(runner)(method, STREAM, {"Host": host})
        assert answer.status == status
        assert ("ALLOW_ANONYMOUS" in answer.body.decode()) == (status == 421)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200), (f"http://{OWN}", 200), (f"https://{OWN}", 200), (f"HTTP://{OWN}", 200),
        ("http://127.0.0.1:5173", 403), ("http://localhost:4437", 403), ("http://127.0.0.1", 403),
        ("https://evil.example", 403), ("null", 403), ("", 403), (f"ftp://{OWN}", 403), ("é", 403),
        (f"http://{OWN}.evil.example", 403), (f"http://{OWN}, https://evil.example", 403),
    ],
)  # fmt: skip
def test_it_takes_writes_of_own_pages_alone(runner: asyncio.Runner, origin: str | None, status: int) -> None:
    headers = {"Host": OWN} | ({} if origin is None else {"Origin": origin})
    for method in ("PUT", "POST", "DELETE"):
        answer = server(runner)(method, STREAM, headers)
        assert answer.status == status
        if status == 403:
            assert "ALLOW_ANONYMOUS" in answer.error
            assert answer.headers["access-control-allow-origin"] == "*", "the page can read why"
    assert server(runner)("GET", STREAM, headers).status == 200, "a page of another origin may read"


@pytest.mark.parametrize(
    ("variables", "host", "origin", "status"),
    [
        ({"ALLOW_ANONYMOUS": "http://localhost:5173"}, OWN, "http://localhost:5173", 200),
        ({"ALLOW_ANONYMOUS": "http://a.test, HTTP://Box.lan:80"}, "box.lan:4437", "http://box.lan:80", 200),
        ({"ALLOW_ANONYMOUS": "http://localhost:5173"}, OWN, "http://localhost:5174", 403),
        ({"ALLOW_ANONYMOUS": "http://box.lan"}, "evil.example", "http://evil.example", 421),
        ({"PUBLIC_URL": "https://box.lan"}, "box.lan", "https://box.lan", 200),
        ({"ALLOW_ANONYMOUS": "true"}, "evil.example", "http://other.example", 200),
        ({"AUTH_SECRET": SECRET}, "evil.example", "http://other.example", 200),
    ],
)
def test_a_setting_lists_further_origins(
    runner: asyncio.Runner, variables: dict[str, str], host: str, origin: str, status: int
) -> None:
    """A key is asked for behind this, and `true` is for everybody."""
    assert server(runner, **variables)("PUT", STREAM, {"Host": host, "Origin": origin}).status == status


def test_health_checks_of_a_load_balancer_name_an_address(runner: asyncio.Runner) -> None:
    assert server(runner)("GET", "/v1/health", {"Host": "10.0.0.7:8080"}).status == 200


@pytest.mark.parametrize(
    "value", ["http://", "ftp://a", "http://a/b", "true http://a", "http://[::1", "*://a"]
)
def test_what_is_no_origin_is_refused(value: str) -> None:
    with pytest.raises(InvalidSetting, match="ALLOW_ANONYMOUS must be true, false or origins"):
        Settings.from_environment({"ALLOW_ANONYMOUS": value})


def test_origins_allow_another_address_of_a_server_and_no_function() -> None:
    settings = Settings.from_environment({"ALLOW_ANONYMOUS": "http://box.lan:4437"}).authorization
    settings.check_not_open("0.0.0.0")
    with pytest.raises(InvalidSetting, match="This function would be open"):
        settings.check_not_open(None)

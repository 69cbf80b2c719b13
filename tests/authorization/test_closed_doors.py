"""A server is open to everybody only if its settings say so."""

import asyncio
import os
from functools import partial

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tests.authorization.tokens import SECRET
from tests.authorization.ways import Asgi
from tests.stack.gateway import behind
from tidemark.http.lambda_adapter import create_function_app
from tidemark.http.security.origin import behind_edge
from tidemark.server.serve import main
from tidemark.settings import AuthorizationSettings, InvalidSetting, Settings

JWKS = {"AUTH_JWKS_URL": "https://id.example/jwks.json", "AUTH_AUDIENCE": "tidemark"}
CLOSED = [{"AUTH_SECRET": SECRET}, {"AUTH_SECRET_NAME": "/tidemark/secret"}, JWKS]


def settings_of(variables: dict[str, str]) -> AuthorizationSettings:
    return Settings.from_environment(variables).authorization


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org", "", None])
def test_an_open_server_requires_allow_anonymous(host: str | None) -> None:
    with pytest.raises(InvalidSetting, match="ALLOW_ANONYMOUS"):
        settings_of({}).check_not_open(host)
    settings_of({"ALLOW_ANONYMOUS": "true"}).check_not_open(host)
    for variables in CLOSED:
        settings_of(variables).check_not_open(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_a_server_may_be_open(host: str) -> None:
    settings_of({}).check_not_open(host)


@pytest.mark.parametrize("value", ["false", "no", "0", ""])
def test_a_function_refuses_to_start_open(value: str) -> None:
    with pytest.raises(InvalidSetting, match="This function would be open"):
        create_function_app(Settings.from_environment({"ALLOW_ANONYMOUS": value}))


def test_the_local_server_refuses_to_be_open_on_other_hosts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it starts anything."""
    for name in [name for name in os.environ if name.startswith("AUTH_") or name == "ALLOW_ANONYMOUS"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOST", "0.0.0.0")
    assert main() == 2
    assert "Listening on 0.0.0.0 would be open to everybody" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"ALLOW_ANONYMOUS": "maybe"}, "true or false"),
        ({"ALLOW_ANONYMOUS": "true", "AUTH_SECRET": SECRET}, "contradicts"),
        ({"AUTH_SECRET": "short"}, "32 bytes"),
        ({"AUTH_SECRET": f"{SECRET}\nshort"}, "32 bytes"),
        ({**JWKS, "AUTH_AUDIENCE": ""}, "AUTH_AUDIENCE"),
        ({**JWKS, "AUTH_JWKS_URL": "http://id.example/jwks.json"}, "https"),
        ({**JWKS, "AUTH_JWKS_URL": "file:///etc/passwd"}, "https"),
        ({**JWKS, "AUTH_JWKS_URL": "id.example/jwks.json"}, "https"),
    ],
)
def test_invalid_settings_are_refused_without_showing_secrets(variables: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason) as refused:
        settings_of(variables)
    assert SECRET not in str(refused.value)
    assert "short" not in str(refused.value)


def test_secrets_are_not_shown() -> None:
    assert SECRET not in repr(Settings.from_environment({"AUTH_SECRET": SECRET}))


@pytest.mark.parametrize(
    ("method", "domain", "passes"),
    [
        ("POST", "abcdef.lambda-url.eu-west-1.on.aws", True),
        ("DELETE", "abcdef.lambda-url.eu-west-1.on.aws", True),
        ("GET", "abcdef.lambda-url.eu-west-1.on.aws", False),
        ("POST", "a1b2c3.execute-api.eu-west-1.amazonaws.com", False),
    ],
)
def test_writes_by_a_functions_own_url_need_no_secret(method: str, domain: str, passes: bool) -> None:
    """What Lambda says of the address counts, and not what the client says in `Host`."""

    async def load() -> str | None:
        return "the origin secret"

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        event = {"rawPath": "/v1/stream/x", "requestContext": {"domainName": domain}}
        door = behind(PlainTextResponse("inside"), partial(behind_edge, load=load, is_required=True))
        await door({**scope, "aws.event": event}, receive, send)

    with asyncio.Runner() as runner:
        way = Asgi(called, runner)
        answer = way(method, "/v1/stream/x", {"Host": "abcdef.lambda-url.eu-west-1.on.aws"})
        assert answer.status == (200 if passes else 403)


def test_every_request_gets_503_while_the_origin_secret_cannot_be_read() -> None:
    async def load() -> str | None:
        return None

    with asyncio.Runner() as runner:
        guard = partial(behind_edge, load=load, is_required=True)
        way = Asgi(behind(PlainTextResponse("inside"), guard), runner)
        answer = way("GET", "/v1/stream/x", {"X-Tidemark-Edge": ""})
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")

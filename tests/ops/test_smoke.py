"""`make smoke` and `make token` against the local system."""

from __future__ import annotations

import time
from collections.abc import Iterator

import jwt
import pytest
from click.testing import CliRunner, Result

from tests.conformance.servers import running, temporary_directory, tidemark_server
from tidemark.aws import clients
from tidemark.ops import cli, smoke

SECRET = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with (
        temporary_directory() as directory,
        running(
            tidemark_server(
                "asgi", directory, AUTH_SECRET=SECRET, ALLOW_ANONYMOUS="false", LONG_POLL_SECONDS="4"
            )
        ) as server,
    ):
        yield server.base_url


def token(*options: str, secret: str = SECRET) -> Result:
    """What `make token` prints."""
    return CliRunner().invoke(cli.main, ["token", *options], env={"AUTH_SECRET": secret})


def test_smoke_creates_appends_reads_waits_and_deletes(
    base_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKEN", token(secret=SECRET + "\nan older one").output.strip())
    assert smoke.main([base_url + "/"]) == 0
    said = capsys.readouterr().out
    for step in (
        "create ",
        "append ",
        "read ",
        "long-poll ",
        "silence ",
        "delete ",
        "gone      404",
        "all as",
    ):
        assert step in said


def test_smoke_without_a_token_fails_and_says_what_to_set(
    base_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    assert smoke.main([base_url]) == 1
    assert "create: 401 (set TOKEN" in capsys.readouterr().err


def test_smoke_fails_where_nothing_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke.main(["http://127.0.0.1:1"]) == 1
    assert "no answer" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        smoke.main(["example.com"])


def test_a_token_has_the_scopes_and_the_hours_that_were_asked_for() -> None:
    made = token("--scopes", "read:agents", "--hours", "2").output.strip()
    claims = jwt.decode(made, SECRET, ["HS256"])
    assert claims["scope"] == "read:agents"
    assert 7000 < claims["exp"] - time.time() < 7300


def test_a_secret_that_the_functions_would_refuse_makes_no_token() -> None:
    made = token(secret="short")
    assert made.exit_code == 2
    assert "has 5 bytes and must have 32" in made.output


def test_a_secret_that_cannot_be_read_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(name: str) -> str:
        raise clients.ParameterUnavailable(f"The parameter {name} cannot be read: AccessDeniedException")

    monkeypatch.setattr(clients, "load_parameter", unavailable)
    refused = token("--secret-name", "/tides/secret")
    assert refused.exit_code == 1
    assert refused.output == "Error: The parameter /tides/secret cannot be read: AccessDeniedException\n"

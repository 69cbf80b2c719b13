"""Tokens of an identity provider, on the server, the HTTP API and the function URL: its keys are fetched by
URL."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.authorization.test_keys import PRIVATE, public_jwk
from tests.authorization.tokens import ADMIN, token
from tests.authorization.ways import WAYS, Way
from tests.http_server import Handler, serving
from tidemark.settings import Settings

TEXT = {"Content-Type": "text/plain"}
OURS = {"iss": "https://id.example", "aud": "tidemark"}


@dataclass
class Issuer:
    """Publishes these keys or, without any, an unusable document."""

    url: str
    keys: list[dict[str, Any]] = field(default_factory=list)

    def sign(self, algorithm: str, kid: str, private: Any = None, **more: Any) -> str:
        return token(ADMIN, key=private or PRIVATE[algorithm], algorithm=algorithm, kid=kid, **OURS | more)


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    class Document(Handler):
        def answer(self) -> None:
            self.respond(200, json.dumps({"keys": publishing.keys}).encode())

    with serving(Document) as url:
        publishing = Issuer(f"{url}/jwks.json")
        yield publishing


@pytest.fixture(params=list(WAYS))
def way(
    request: pytest.FixtureRequest,
    environment: dict[str, str],
    issuer: Issuer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Way]:
    """In an environment that knows no keys yet, and may fetch them again at once."""
    issuer.keys = [public_jwk(algorithm, algorithm) for algorithm in PRIVATE]
    monkeypatch.setenv("AUTH_SECRET", "")
    monkeypatch.setenv("AUTH_JWKS_URL", issuer.url)
    monkeypatch.setenv("AUTH_AUDIENCE", OURS["aud"])
    monkeypatch.setenv("AUTH_ISSUER", OURS["iss"])
    monkeypatch.setattr("tidemark.http.security.keys.FAILED_SECONDS", 0.0)
    with WAYS[request.param](Settings.from_environment(os.environ)) as opened:
        yield opened


def by(signed: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {signed}"}


def test_a_token_that_the_issuer_signed_is_accepted(way: Way, issuer: Issuer, name: str) -> None:
    signed = issuer.sign("RS256", "RS256")
    assert way("PUT", f"/v1/stream/{name}", TEXT | by(signed), b"x").status == 201
    assert way("GET", f"/v1/stream/{name}", by(signed)).body == b"x"


def test_a_token_with_another_key_audience_or_issuer_gets_401(way: Way, issuer: Issuer, name: str) -> None:
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    refused = {
        "a known id, another's key": issuer.sign("RS256", "RS256", stranger),
        "another audience": issuer.sign("RS256", "RS256", aud="another"),
        "another issuer": issuer.sign("RS256", "RS256", iss="https://other.example"),
    }
    for title, signed in refused.items():
        assert way("GET", f"/v1/stream/{name}", by(signed)).status == 401, title


def test_without_keys_a_token_gets_503_with_retry_after(way: Way, issuer: Issuer, name: str) -> None:
    issuer.keys = []
    answer = way("GET", f"/v1/stream/{name}", by(issuer.sign("RS256", "RS256")))
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert answer.headers["cache-control"] == "no-store"
    assert issuer.url not in answer.error
    assert way("GET", f"/v1/stream/{name}").status == 401

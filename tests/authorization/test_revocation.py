"""Revoked tokens are refused within a minute, for one read of the list in that time."""

import asyncio
import time
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from tests.authorization.test_keys import PRIVATE, Publisher, public_jwk
from tests.authorization.tokens import ADMIN, SECRET, bearer, token
from tests.authorization.ways import WAYS, Asgi
from tests.support import World
from tidemark.cli.__main__ import main
from tidemark.http.app import create_app
from tidemark.http.backend import lambda_backend
from tidemark.http.security import keys as keys_module
from tidemark.http.security.authorization import Tokens
from tidemark.log.schema import REVOKED_PK, IssuedToken, encode_token
from tidemark.protocol.errors import KeysUnavailable, StorageUnavailable, Unauthorized
from tidemark.settings import AuthorizationSettings, Settings

NOW = time.time()
#: Of an identity provider.
PUBLISHED = {"key": PRIVATE["RS256"], "algorithm": "RS256", "kid": "k1"}


class WarmProcess:
    """Checks tokens at a time that a test sets."""

    def __init__(self, world: World) -> None:
        self.now, process = NOW, world.process()
        self.table, self.taken = process.stores.table, process.calls.taken
        own = keys_module.keys_of(AuthorizationSettings(secret=SECRET))
        keys = [*own, Publisher(public_jwk("RS256", "k1")).keys()]
        check_id = keys_module.check_of_revocation(self.table, lambda: self.now)
        self.tokens = Tokens(keys, clock=lambda: self.now, check_id=check_id)

    def revoke(self, token_id: str) -> None:
        self.table.put(encode_token(REVOKED_PK, IssuedToken(token_id, "", "", int(1000 * NOW) + 3_600_000)))
        self.taken()


@pytest.mark.parametrize(
    ("claim", "token_id", "signer"),
    [
        (7, "7", {}),
        ('-~é"\r\n', '-~é"\r\n', {}),
        ("x" * 300, "x" * 256, {}),
        ("an-identity-provider's", "an-identity-provider's", PUBLISHED),
    ],
)
def test_a_warm_process_refuses_a_revoked_token_within_a_minute_and_reads_the_list_once(
    world: World, claim: object, token_id: str, signer: dict[str, Any]
) -> None:
    warm = WarmProcess(world)
    signed, other = (token(ADMIN, jti=each, **signer) for each in (claim, "other"))
    for claims in ({}, {"jti": ""}, {"jti": None}):
        warm.tokens.check(token(ADMIN, **claims))
    assert warm.taken() == {}, "a token without an id"
    warm.tokens.check(other)
    warm.now = NOW + 30
    warm.tokens.check(signed)
    assert warm.taken() == {"Query": 1}
    warm.revoke(token_id)
    warm.now = NOW + 49
    assert warm.tokens.recall(signed)
    warm.now = NOW + 61
    assert warm.tokens.recall(signed) is None
    assert warm.taken() == {}
    with pytest.raises(Unauthorized, match=r"^Token \S+ was revoked$") as refused:
        warm.tokens.check(signed)
    assert refused.value.headers["WWW-Authenticate"].encode("ascii").count(b'"') == 6
    assert "\n" not in refused.value.message
    warm.tokens.check(other)
    assert warm.taken() == {"Query": 1}


def test_a_list_that_cannot_be_read_is_used_as_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    warm = WarmProcess(world)
    signed, known = token(ADMIN, jti="first"), token(ADMIN, jti="known")
    with monkeypatch.context() as patch:
        patch.setattr(warm.table, "query", Mock(side_effect=StorageUnavailable))
        with pytest.raises(KeysUnavailable):
            warm.tokens.check(signed)
    warm.revoke("known")
    warm.now += keys_module.FAILED_SECONDS
    warm.tokens.check(signed)
    monkeypatch.setattr(warm.table, "query", Mock(side_effect=StorageUnavailable))
    warm.now += 3600
    warm.tokens.check(signed)
    with pytest.raises(Unauthorized, match="known was revoked"):
        warm.tokens.check(known)


def test_an_append_with_a_known_token_costs_no_call_beside_its_own(world: World, name: str) -> None:
    process, headers = world.process(), bearer(ADMIN, jti="appends") | {"Content-Type": "text/plain"}
    settings = replace(process.settings, authorization=AuthorizationSettings(secret=SECRET))
    with asyncio.Runner() as runner:
        way = Asgi(create_app(lambda_backend(process.stores, settings)), runner)
        assert way("PUT", f"/v1/stream/{name}", headers).status == 201
        process.calls.taken()
        assert [way("POST", f"/v1/stream/{name}", headers, b"x").status for _ in range(3)] == [204] * 3
    assert sum(process.calls.taken().values()) == 3


@pytest.mark.parametrize("entry", WAYS)
def test_each_request_with_a_revoked_token_gets_401_with_the_reason(
    entry: str, environment: dict[str, str], world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here each request reads the list."""
    monkeypatch.setattr(keys_module, "REVOKED_SECONDS", -1.0)
    monkeypatch.setattr(keys_module, "REFETCH_SECONDS", 0.0)
    stream, revoked = f"/v1/stream/{name}", bearer(ADMIN, jti=name) | {"Content-Type": "text/plain"}
    with WAYS[entry](Settings.from_environment(environment)) as way:
        assert way("PUT", stream, revoked, b"x").status == 201
        command = ["token", "revoke", name, "--hours", "1", "--table", world.table_name]
        assert CliRunner().invoke(main, command).exit_code == 0
        for query in ("", "?offset=now&live=long-poll", "?offset=-1&live=sse"):
            refused = way("GET", stream + query, revoked)
            assert (refused.status, refused.error) == (401, f"Token {name} was revoked")
        assert way("POST", stream, revoked, b"y").status == 401
        assert way("GET", stream, bearer(ADMIN, jti="other")).body == b"x"

"""Keys: fetched, cached, rotated, missing."""

import heapq
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.authorization.tokens import SECRET, claims, handmade, token
from tests.http_server import Handler, serving
from tidemark.aws import clients
from tidemark.aws.clients import ParameterUnavailable
from tidemark.http.security import keys as keys_module
from tidemark.http.security.authorization import Tokens
from tidemark.http.security.keys import (
    FAILED_SECONDS,
    FRESH_SECONDS,
    LONGEST_PAUSE_SECONDS,
    PATIENCE_SECONDS,
    REFETCH_SECONDS,
    STALE_SECONDS,
    CannotFetch,
    PublicKeys,
    PublishedKeys,
    RefreshingCache,
    SharedKeys,
    fetch_public_keys,
    fetch_secrets,
    parse_public_keys,
)
from tidemark.protocol.authorization import RequiredScope, Right, Target
from tidemark.protocol.errors import KeysUnavailable, Unauthorized

PRIVATE: dict[str, Any] = {
    "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
SOMETHING = RequiredScope(Target("v1", "x"), frozenset({Right.READ}))
ELSEWHERE = {"iss": "https://id.example", "aud": "tidemark"}


def public_jwk(algorithm: str, kid: str | None, private: Any = None, **more: Any) -> dict[str, Any]:
    key = (private or PRIVATE[algorithm]).public_key()
    kinds: dict[str, Any] = {
        "RS256": jwt.algorithms.RSAAlgorithm,
        "ES256": jwt.algorithms.ECAlgorithm,
        "EdDSA": jwt.algorithms.OKPAlgorithm,
    }
    entry: dict[str, Any] = kinds[algorithm].to_jwk(key, as_dict=True)
    return entry | ({"kid": kid} if kid else {}) | more


def document(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"keys": entries}).encode()


def as_issued(algorithm: str, kid: str | None = None, private: Any = None, **more: Any) -> str:
    named = {"kid": kid} if kid else {}
    return token("read:v1", key=private or PRIVATE[algorithm], algorithm=algorithm, **named, **more)


class Publisher:
    """A document that can change or become unavailable; its fetches are counted."""

    def __init__(self, *entries: dict[str, Any]) -> None:
        self.entries = entries
        self.is_down = False
        self.fetched = 0
        self.now = 0.0

    def __call__(self) -> PublicKeys:
        self.fetched += 1
        if self.is_down:
            raise CannotFetch("down")
        return parse_public_keys(document(*self.entries), "test")

    def keys(self) -> PublishedKeys:
        return PublishedKeys(RefreshingCache(self, lambda: self.now))


@pytest.mark.parametrize("kid", ["k1", None])
@pytest.mark.parametrize("signs", PRIVATE)
@pytest.mark.parametrize("published", PRIVATE)
def test_a_key_verifies_signatures_of_its_private_key(published: str, signs: str, kid: str | None) -> None:
    tokens = Tokens([Publisher(public_jwk(published, kid)).keys()])
    if published == signs:
        tokens.check(as_issued(signs, kid)).check(SOMETHING)
    else:
        with pytest.raises(Unauthorized, match="not known"):
            tokens.check(as_issued(signs, kid))


def as_secrets(kid: str) -> Iterator[bytes]:
    """The public key, in the forms that a careless server may use as an HMAC secret."""
    public = PRIVATE[kid].public_key()
    for encoding in (serialization.Encoding.PEM, serialization.Encoding.DER):
        yield public.public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    entry = public_jwk(kid, kid)
    yield json.dumps(entry).encode()
    yield next(value for name, value in entry.items() if name in {"n", "x"}).encode()


@pytest.mark.parametrize("kid", PRIVATE)
def test_a_public_key_is_no_secret(kid: str) -> None:
    """Signed with HS256 and a public key, which everybody knows (PyJWT itself would refuse to)."""
    tokens = Tokens([Publisher(public_jwk(kid, kid)).keys()])
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    for secret, named in itertools.product(as_secrets(kid), ({}, {"kid": kid})):
        head = handmade({"alg": "HS256", "typ": "JWT"} | named, claims("read:v1")).rpartition(".")[0]
        signature = jwt.utils.base64url_encode(algorithm.sign(head.encode(), secret)).decode()
        with pytest.raises(Unauthorized, match="not known"):
            tokens.check(f"{head}.{signature}")


def test_secrets_and_published_keys_can_be_used_together() -> None:
    publisher = Publisher(public_jwk("RS256", "k1"))
    tokens = Tokens([SharedKeys(RefreshingCache(lambda: (SECRET.encode(),))), publisher.keys()])
    tokens.check(as_issued("RS256", "k1"))
    tokens.check(token("read:v1"))
    with pytest.raises(Unauthorized):
        tokens.check(token("read:v1", key="another-secret-of-more-than-thirty-two-bytes", kid="k1"))


def test_an_unknown_key_id_fetches_the_document_but_not_too_often() -> None:
    """So rotation works with the first token, and invented ids do not become requests to the issuer."""
    publisher = Publisher(public_jwk("RS256", "old"))
    tokens = Tokens([publisher.keys()])
    tokens.check(as_issued("RS256", "old"))
    new = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    publisher.entries = (public_jwk("RS256", "old"), public_jwk("RS256", "new", new))
    publisher.now += REFETCH_SECONDS
    tokens.check(as_issued("RS256", "new", new))
    tokens.check(as_issued("RS256", "old", exp=4_000_000_000))
    assert publisher.fetched == 2
    for number in range(50):
        with pytest.raises(Unauthorized, match="not known"):
            tokens.check(as_issued("RS256", f"invented-{number}"))
    assert publisher.fetched == 2
    publisher.now += REFETCH_SECONDS
    with pytest.raises(Unauthorized):
        tokens.check(as_issued("RS256", "invented"))
    assert publisher.fetched == 3


def test_a_withdrawn_key_is_no_longer_accepted() -> None:
    publisher = Publisher(public_jwk("RS256", "old"), public_jwk("ES256", "other"))
    keys = publisher.keys()
    assert keys.find("RS256", "old")
    publisher.entries = (public_jwk("ES256", "other"),)
    publisher.now += FRESH_SECONDS + 1
    assert keys.find("RS256", "old") == ()


def test_known_keys_stay_valid_for_a_day_while_the_issuer_is_down() -> None:
    publisher = Publisher(public_jwk("RS256", "k1"))
    keys = publisher.keys()
    assert keys.find("RS256", "k1")
    publisher.is_down = True
    publisher.now += FRESH_SECONDS + 1
    assert keys.find("RS256", "k1")
    publisher.now += STALE_SECONDS
    with pytest.raises(KeysUnavailable) as refused:
        keys.find("RS256", "k1")
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "5")


def test_without_keys_the_document_is_fetched_again_after_a_pause() -> None:
    publisher = Publisher(public_jwk("RS256", "k1"))
    publisher.is_down = True
    keys = publisher.keys()
    for _ in range(10):
        with pytest.raises(KeysUnavailable):
            keys.find("RS256", "k1")
    assert publisher.fetched == 1
    publisher.is_down = False
    publisher.now += FAILED_SECONDS
    assert keys.find("RS256", "k1")


def test_callers_that_come_while_one_fetches_wait_for_its_value() -> None:
    late: list[str | None] = []
    other = threading.Thread(target=lambda: late.append(cache.get()), daemon=True)

    def fetch() -> str:
        if not other.ident:
            other.start()
            other.join(0.3)  # Long enough for one that does not wait.
        return "fetched"

    cache = RefreshingCache(fetch)
    assert cache.get() == "fetched"
    other.join(60)
    assert late == ["fetched"]


def test_known_keys_check_tokens_while_an_issuer_is_slow() -> None:
    """A token that names an unknown key makes one caller fetch, and holds up no token of a known key."""
    publisher = Publisher(public_jwk("RS256", "k1"))
    go_on, is_fetching = threading.Event(), threading.Event()

    def fetch() -> PublicKeys:
        if publisher.fetched:
            is_fetching.set()
            go_on.wait(60)
        return publisher()

    keys = PublishedKeys(RefreshingCache(fetch, lambda: publisher.now))
    assert keys.find("RS256", "k1")
    publisher.now += REFETCH_SECONDS
    unknown = threading.Thread(target=keys.find, args=("RS256", "k2"), daemon=True)
    known = threading.Thread(target=keys.find, args=("RS256", "k1"), daemon=True)
    try:
        unknown.start()
        assert is_fetching.wait(60)
        known.start()
        known.join(30)
        assert (known.is_alive(), unknown.is_alive()) == (False, True)
    finally:
        go_on.set()
        unknown.join(60)


@pytest.mark.parametrize(("environments", "a_second", "refused"), [(600, 60, 0), (1000, 100, 60)])
def test_a_storm_of_cold_starts_waits_for_a_busy_parameter_store(
    environments: int, a_second: int, refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSM takes 40 GetParameter a second. Each environment's attempts, in virtual time."""
    monkeypatch.setattr(keys_module, "random", random.Random(7))
    now, spent_at, left, gave_up = 0.0, 0.0, 40.0, 0
    starts = ((number / a_second, number) for number in range(environments))
    attempts = [(start, number, keys_module.pauses(lambda: now)) for start, number in starts]
    while attempts:
        now, number, waits = heapq.heappop(attempts)
        left, spent_at = min(40.0, left + 40 * (now - spent_at)), now
        if left >= 1:
            left -= 1
        elif (pause := next(waits, None)) is not None:
            heapq.heappush(attempts, (now + pause, number, waits))
        else:
            gave_up += 1
    assert gave_up <= refused


def test_the_first_value_is_waited_for_while_its_source_is_busy_and_a_later_one_is_not() -> None:
    """A request that has an old value would wait for nothing."""
    publisher = Publisher(public_jwk("RS256", "k1"))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        publisher.now += seconds

    def fetch() -> PublicKeys:
        if publisher.is_down or publisher.now < 12:
            raise CannotFetch("ThrottlingException", throttled=True)
        return publisher()

    cache = RefreshingCache(fetch, lambda: publisher.now, sleep)
    assert cache.get() is not None
    assert 12 <= publisher.now <= 16
    waited = len(slept)
    publisher.is_down = True
    publisher.now += FRESH_SECONDS + 1
    assert cache.get() is not None
    assert len(slept) == waited
    began = publisher.now
    empty = RefreshingCache(fetch, lambda: publisher.now, sleep)
    assert empty.get() is None
    assert PATIENCE_SECONDS <= publisher.now - began <= PATIENCE_SECONDS + LONGEST_PAUSE_SECONDS


def test_a_request_that_needs_two_values_of_a_busy_source_waits_as_long_as_for_one() -> None:
    """The origin secret and the key of tokens are both in SSM; the gateway gives up after thirty seconds."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def fetch() -> str:
        raise CannotFetch("ThrottlingException", throttled=True)

    patience = keys_module.Patience()
    for _ in range(2):
        assert RefreshingCache(fetch, lambda: now, sleep, patience).get() is None
    assert PATIENCE_SECONDS <= now <= PATIENCE_SECONDS + LONGEST_PAUSE_SECONDS
    now += keys_module.FAILED_SECONDS + LONGEST_PAUSE_SECONDS
    began = now
    assert RefreshingCache(fetch, lambda: now, sleep, patience).get() is None
    assert now - began >= PATIENCE_SECONDS, "a later request has patience anew"


UNUSABLE_KEYS = {
    "symmetric": {"kty": "oct", "k": "AAAA", "kid": "k1"},
    "symmetric, named RS256": {"kty": "oct", "k": "AAAA", "kid": "k1", "alg": "RS256"},
    "for encryption": public_jwk("RS256", "k1", use="enc"),
    "RSA without numbers": {"kty": "RSA", "kid": "k1"},
    "unknown type": {"kty": "unheard of", "kid": "k1"},
    "RSA with wrong types": {"kty": "RSA", "n": 7, "e": [], "kid": "k1"},
    "empty": {},
    "text": "text",
    "null": None,
}


@pytest.mark.parametrize("entry", UNUSABLE_KEYS.values(), ids=UNUSABLE_KEYS)
def test_an_unusable_key_is_ignored(entry: Any) -> None:
    """Above all a symmetric key: anybody who can read the document could sign with it."""
    keys = parse_public_keys(document(entry, public_jwk("ES256", "good")), "test")
    assert list(keys) == ["good"]
    with pytest.raises(CannotFetch, match="no key"):
        parse_public_keys(document(entry), "test")


@pytest.mark.parametrize(
    "text", [b"", b"<html>", b"[]", b'{"keys": 1}', b'{"keys": null}', b"\xff", b"[" * 5000]
)
def test_a_document_that_is_not_a_key_set_is_refused(text: bytes) -> None:
    with pytest.raises(CannotFetch, match="not a JSON Web Key Set"):
        parse_public_keys(text, "test")


Respond = Callable[[Handler], None]


@pytest.fixture
def served() -> Iterator[tuple[str, list[Respond]]]:
    """The URL of a document, and how the server responds."""
    respond: list[Respond] = []

    class Document(Handler):
        def answer(self) -> None:
            respond[-1](self)

    with serving(Document) as url:
        yield f"{url}/jwks.json", respond


def sends(status: int, body: bytes, **headers: str) -> Respond:
    return lambda handler: handler.respond(status, body, headers.items())


@pytest.mark.parametrize(
    "answer",
    [
        sends(404, b"{}"),
        sends(500, b""),
        sends(302, b"", Location="http://127.0.0.1:1/"),
        sends(200, b" " * (300 * 1024)),
        lambda handler: handler.connection.close(),
    ],
    ids=["404", "500", "redirect", "huge", "hangs up"],
)
def test_a_document_out_of_reach_is_cannot_fetch(served: tuple[str, list[Respond]], answer: Respond) -> None:
    url, respond = served
    respond.append(answer)
    with pytest.raises(CannotFetch):
        fetch_public_keys(url)


def test_a_secret_is_read_from_the_parameter_store_and_can_be_rotated() -> None:
    other = "another-secret-of-more-than-thirty-two-bytes"
    assert fetch_secrets("/name", lambda _: f"{SECRET}\n{other}\n") == (SECRET.encode(), other.encode())
    tokens = Tokens(
        [SharedKeys(RefreshingCache(lambda: fetch_secrets("/name", lambda _: f"{other}\n{SECRET}")))]
    )
    tokens.check(token("read:v1"))
    tokens.check(token("read:v1", key=other))


@pytest.mark.parametrize("text", ["", "short", f"{SECRET}\nshort"])
def test_a_secret_that_is_too_short_is_refused(text: str) -> None:
    with pytest.raises(CannotFetch) as refused:
        fetch_secrets("/name", lambda _: text)
    assert "/name" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_secret_that_cannot_be_read_raises_cannot_fetch() -> None:
    def load(_: str) -> str:
        raise ParameterUnavailable("The parameter /name cannot be read")

    tokens = Tokens([SharedKeys(RefreshingCache(lambda: fetch_secrets("/name", load)))])
    with pytest.raises(KeysUnavailable):
        tokens.check(token("read:v1"))


@pytest.mark.parametrize(("code", "throttled"), [("ThrottlingException", True), ("ParameterNotFound", False)])
def test_a_busy_parameter_store_is_told_from_a_missing_parameter(
    code: str, throttled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is worth a wait."""

    def get_parameter(**_: Any) -> None:
        raise ClientError({"Error": {"Code": code, "Message": ""}}, "GetParameter")

    monkeypatch.setattr(clients, "make_client", lambda *_, **__: SimpleNamespace(get_parameter=get_parameter))
    with pytest.raises(CannotFetch, match=code) as refused:
        fetch_secrets("/name")
    assert refused.value.throttled is throttled


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "tidemark"}, "lacks a claim"),
        ({"iss": "https://id.example"}, "lacks a claim"),
        ({"iss": "https://other.example", "aud": "tidemark"}, "issuer"),
        ({"iss": "https://id.example", "aud": "other"}, "audience"),
        ({"iss": "https://id.example", "aud": ["other", "more"]}, "audience"),
        ({"iss": "https://id.example", "aud": 7}, "audience"),
    ],
)
def test_issuer_and_audience_must_be_those_of_the_settings(claims: dict[str, Any], reason: str) -> None:
    tokens = Tokens(
        [SharedKeys(RefreshingCache(lambda: (SECRET.encode(),)))],
        issuer="https://id.example",
        audience="tidemark",
    )
    tokens.check(token("", iss="https://id.example", aud=["more", "tidemark"]))
    with pytest.raises(Unauthorized, match=reason):
        tokens.check(token("", **claims))


def test_an_accepted_token_is_remembered_for_a_minute_or_until_it_expires() -> None:
    """So an append costs no signature check, and a withdrawn key is accepted for little longer."""
    now = 1_900_000_000.0
    clock = [now]
    tokens = Tokens([SharedKeys(RefreshingCache(lambda: (SECRET.encode(),)))], clock=lambda: clock[0])
    long, short = token("read:v1", exp=int(now) + 3600), token("read:v1", exp=int(now) + 10)
    assert tokens.recall(long) is None
    for each in (long, short):
        assert tokens.check(each) == tokens.recall(each)
    clock[0] = now + 41
    assert tokens.recall(long) is not None
    assert tokens.recall(short) is None
    clock[0] = now + 60
    assert tokens.recall(long) is None


def test_the_memory_for_accepted_tokens_is_bounded() -> None:
    tokens = Tokens([SharedKeys(RefreshingCache(lambda: (SECRET.encode(),)))])
    issued = [token("", number=number) for number in range(1030)]
    for each in issued:
        tokens.check(each)
    assert sum(tokens.recall(each) is not None for each in issued) <= 1024

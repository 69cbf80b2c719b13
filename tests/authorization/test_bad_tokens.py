"""Invalid tokens get 401 with a reason, on the server, the HTTP API and the function URL, and never a stack
trace."""

import json
import time
from typing import Any

import jwt
import pytest

from tests.answers import Answer
from tests.authorization.tokens import ADMIN, SECRET, claims, handmade, token
from tests.authorization.ways import Way

NOW = int(time.time())


def signed(**more: Any) -> str:
    return token(ADMIN, **more)


SIGNATURE = token("x").split(".")[2:]

BAD = {
    "expired, beyond the leeway": (signed(exp=NOW - 60), "expired"),
    "not yet valid": (signed(nbf=NOW + 3600), "not valid yet"),
    "without an end": (jwt.encode({"scope": ADMIN}, SECRET, "HS256"), "lacks a claim"),
    "an end that is no time": (signed(exp="soon"), "JWT"),
    "an end beyond all numbers": (handmade({"alg": "HS256"}, {"exp": 10**400}), ""),
    "another's secret": (token(ADMIN, key="another-secret-of-more-than-thirty-two-bytes"), "signature"),
    "another's claims": (
        ".".join((*token("x").split(".")[:1], *signed().split(".")[1:2], *SIGNATURE)),
        "signature",
    ),
    "none": (handmade({"alg": "none"}, claims(ADMIN)), "not known"),
    "nOnE": (handmade({"alg": "nOnE"}, claims(ADMIN)), "not known"),
    "HS512 with the right secret": (token(ADMIN, key=SECRET * 2, algorithm="HS512"), "not known"),
    "an algorithm that is a number": (handmade({"alg": 1}, claims(ADMIN)), "readable"),
    "no algorithm": (handmade({}, claims(ADMIN)), "readable"),
    "a header that is a list": (handmade([], claims(ADMIN)), "readable"),
    "a payload that is a list": (handmade({"alg": "HS256"}, []), ""),
    "a key id that is a number": (handmade({"alg": "HS256", "kid": 1}, claims(ADMIN)), "readable"),
    "a critical extension": (
        jwt.encode(claims(ADMIN), SECRET, "HS256", headers={"crit": ["exp2"], "exp2": 1}),
        "",
    ),
    "deep JSON": (handmade({"alg": "HS256", "x": json.loads("[" * 900 + "]" * 900)}, {}), ""),
    "two parts": ("abc.def", "readable"),
    "four parts": (signed() + ".x", ""),
    "no JWT": ("hunter2", "readable"),
    "dots": ("..", "readable"),
    "not base64": ("%%%.%%%.%%%", "readable"),
    "not ASCII": ("é.ü.ß", "readable"),
    "too long": (token(ADMIN, filler="x" * 9000), "too long"),
}


def check_refused(answer: Answer, secret_parts: str) -> None:
    assert answer.status == 401, answer
    assert answer.headers["www-authenticate"].startswith('Bearer realm="tidemark", error="invalid_token"')
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "application/json"
    assert answer.error
    assert "Traceback" not in answer.body.decode()
    assert len(secret_parts) < 20 or secret_parts not in answer.body.decode()


@pytest.mark.parametrize("title", BAD)
def test_an_invalid_token_gets_401_with_the_reason(way: Way, stream: str, title: str) -> None:
    bad, reason = BAD[title]
    for method in ("GET", "POST", "DELETE"):
        answer = way(method, f"/v1/stream/{stream}", {"Authorization": f"Bearer {bad}"}, b"x")
        check_refused(answer, bad)
        assert reason in answer.error
    assert b"x" not in way("GET", f"/v1/stream/{stream}", {"Authorization": f"Bearer {signed()}"}).body[15:]


@pytest.mark.parametrize(
    "sent", ["", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "Token abc", signed(), f"Bearer {signed()} x"]
)
def test_an_authorization_header_without_a_bearer_token_gets_401(way: Way, stream: str, sent: str) -> None:
    check_refused(way("GET", f"/v1/stream/{stream}", {"Authorization": sent}), signed())


def test_a_token_is_valid_within_the_leeway_of_clocks(local: Way) -> None:
    for claim in ({"exp": int(time.time()) - 10}, {"nbf": int(time.time()) + 10}):
        answer = local("HEAD", "/v1/stream/nothing", {"Authorization": f"Bearer {signed(**claim)}"})
        assert answer.status == 404


def test_the_case_of_bearer_does_not_matter(way: Way, stream: str) -> None:
    assert way("GET", f"/v1/stream/{stream}", {"Authorization": f"bearer {signed()}"}).status == 200


def test_a_signed_request_has_its_token_in_a_separate_header(way: Way, stream: str) -> None:
    """CloudFront signs the requests to a function URL, and replaces the Authorization header."""
    signature = {"Authorization": "AWS4-HMAC-SHA256 Credential=AKID/…"[:-1]}
    forwarded = signature | {"X-Tidemark-Authorization": f"Bearer {signed()}"}
    assert way("GET", f"/v1/stream/{stream}", forwarded).status == 200
    assert way("GET", f"/v1/stream/{stream}", signature).status == 401
    # A token of one's own cannot be overruled from beside.
    both = {"Authorization": "Bearer wrong", "X-Tidemark-Authorization": f"Bearer {signed()}"}
    assert way("GET", f"/v1/stream/{stream}", both).status == 401

"""Our signature is botocore's, which AWS accepts: no local engine checks one."""

import datetime as dt
import hmac
import string
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidemark.aws.http import AwsRequest, Credentials, Service

SIGNERS = {"dynamodb": SigV4Auth, "execute-api": SigV4Auth, "s3": S3SigV4Auth}
ENDPOINTS = [
    "https://dynamodb.eu-central-1.amazonaws.com", "https://s3.cn-north-1.amazonaws.com.cn/",
    "https://example.com:443", "http://127.0.0.1:8000", "http://localhost:80", "https://Example.com:8443",
    "http://[::1]:4566",
]  # fmt: skip
#: Headers of the connection, which botocore does not sign and no request of Tidemark has, and those that
#: the signer sets.
NOT_OF_A_REQUEST = {
    *("connection", "expect", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
    *("transfer-encoding", "upgrade", "user-agent", "x-amzn-trace-id", "date", "host", "authorization"),
    *("x-amz-date", "x-amz-security-token", "x-amz-content-sha256", "content-md5"),
}
NAMES = st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=20).filter(
    lambda name: name.lower() not in NOT_OF_A_REQUEST
)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=40)
SECRETS = st.text(string.ascii_letters + string.digits + "+/", min_size=1, max_size=60)
CREDENTIALS = st.builds(Credentials, SECRETS, SECRETS, st.none() | st.just("") | SECRETS)
TIMES = st.datetimes(dt.datetime(2000, 1, 1), dt.datetime(2100, 1, 1))  # noqa: DTZ001 - as botocore has it
CONNECTIONS = st.text(string.ascii_letters + string.digits + "-_+/=", min_size=1, max_size=20)
KEYS = st.text(st.characters(codec="utf-8"), max_size=40)
Headers = dict[str, str]


def paths(service: str) -> st.SearchStrategy[str]:
    """As they are sent: S3's signature uses the path as it is, with dots and double slashes."""
    if service == "dynamodb":
        return st.just("/")
    if service == "execute-api":
        return CONNECTIONS.map(lambda connection: f"/v1/@connections/{quote(connection, safe='')}")
    return st.builds(lambda bucket, key: f"/{bucket}/{quote(key, safe='/-_.~')}", st.just("bucket"), KEYS)


@st.composite
def services_and_requests(draw: st.DrawFn) -> tuple[str, AwsRequest]:
    service = draw(st.sampled_from(sorted(SIGNERS)))
    headers = draw(st.dictionaries(NAMES, VALUES, max_size=6))
    assume(len({name.lower() for name in headers}) == len(headers))
    method = draw(st.sampled_from(["GET", "PUT"])) if service == "s3" else "POST"
    return service, AwsRequest(method, draw(paths(service)), headers, draw(st.binary(max_size=200)))


def signed_by_botocore(  # noqa: PLR0917 - what a signature covers
    name: str, region: str, endpoint: str, credentials: Any, request: AwsRequest, at: dt.datetime
) -> Headers:
    url = endpoint.rstrip("/") + request.path
    signed = AWSRequest(request.method, url, headers=request.headers, data=request.body)
    with mock.patch("botocore.auth.get_current_datetime", return_value=at):
        SIGNERS[name](credentials, name, region).add_auth(signed)
    return {header.lower(): value for header, value in signed.headers.items()}


def signed_by_us(service: Service, request: AwsRequest, at: dt.datetime) -> Headers:
    service.now = lambda: at.replace(tzinfo=dt.UTC).timestamp()
    return {header.lower(): value for header, value in service.sign(request).items()}


@given(
    services_and_requests(),
    st.sampled_from(["us-east-1", "eu-central-1", "cn-north-1"]),
    st.sampled_from(ENDPOINTS),
    CREDENTIALS,
    TIMES,
)
def test_every_request_is_signed_as_botocore_signs_it(
    asked: tuple[str, AwsRequest],
    region: str,
    endpoint: str,
    credentials: Credentials,
    at: dt.datetime,
) -> None:
    name, request = asked
    expected = signed_by_botocore(name, region, endpoint, credentials, request, at)
    assert signed_by_us(Service(name, region, endpoint, lambda: credentials), request, at) == expected


@given(st.lists(st.tuples(CREDENTIALS, TIMES), min_size=2, max_size=6))
def test_the_cached_key_is_of_a_day_and_user(turns: list[tuple[Credentials, dt.datetime]]) -> None:
    """A process may run past midnight, and get new credentials."""
    request = AwsRequest("POST", "/", {"X-Amz-Target": "DynamoDB_20120810.PutItem"}, b"{}")
    endpoint, current = ENDPOINTS[0], turns[0][0]
    service = Service("dynamodb", "eu-central-1", endpoint, lambda: current)
    for credentials, at in [*turns, *turns]:
        current = credentials
        expected = signed_by_botocore("dynamodb", "eu-central-1", endpoint, credentials, request, at)
        assert signed_by_us(service, request, at) == expected


def test_the_signing_key_is_derived_once_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service("s3", "eu-central-1", ENDPOINTS[0], lambda: Credentials("a", "b", None))
    digests = mock.Mock(wraps=hmac.digest)
    monkeypatch.setattr("tidemark.aws.http.hmac.digest", digests)
    morning = dt.datetime(2026, 1, 2, 0, 0, 1)  # noqa: DTZ001
    for at, expected in [(morning, 5), (morning.replace(hour=23), 6), (morning.replace(day=3), 11)]:
        signed_by_us(service, AwsRequest("GET", "/b/k", {}), at)
        assert digests.call_count == expected

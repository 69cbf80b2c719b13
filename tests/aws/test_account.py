"""Region, credentials and endpoints are those that boto3 would find; botocore is imported only if it is
needed."""

import os
from pathlib import Path
from typing import Any

import pytest
from botocore.session import get_session

from tidemark.aws.http import Account, Credentials

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Only what the test sets; no profile of whoever runs it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def triple(credentials: Credentials) -> tuple[str, str, str | None]:
    return credentials.access_key, credentials.secret_key, credentials.token


def check_as_botocore() -> None:
    """The credentials equal those that botocore finds in the environment and the files."""
    expected: Any = get_session().get_credentials()
    assert triple(Account()._credentials()) == triple(expected.get_frozen_credentials())


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"AWS_SESSION_TOKEN": "token"},
        {"AWS_SECURITY_TOKEN": "old name", "AWS_SESSION_TOKEN": "token"},
        {"AWS_SESSION_TOKEN": ""},
        {"AWS_SESSION_TOKEN": "token", "AWS_CREDENTIAL_EXPIRATION": "2100-01-01T00:00:00Z"},
        {"AWS_PROFILE": "other"},
    ],
)
def test_credentials_in_the_environment_are_those_that_botocore_finds(
    environment: pytest.MonkeyPatch, tmp_path: Path, more: dict[str, str]
) -> None:
    """If there are both, a key in the environment wins over the profile."""
    write_profile(tmp_path)
    for name, value in more.items():
        environment.setenv(name, value)
    check_as_botocore()


def test_a_profiles_credentials_and_region_are_found(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_profile(tmp_path)
    for name in ENVIRONMENT:
        environment.delenv(name)
    environment.setenv("AWS_PROFILE", "other")
    check_as_botocore()
    account = Account()
    assert triple(account._credentials())[0] == "of the profile"
    assert account.region == "eu-north-1"
    assert account.service("dynamodb").endpoint == "https://dynamodb.eu-north-1.amazonaws.com"


def write_profile(directory: Path) -> None:
    (directory / "config").write_text("[profile other]\nregion = eu-north-1\n")
    (directory / "credentials").write_text(
        "[other]\naws_access_key_id = of the profile\naws_secret_access_key = its secret\n"
    )


def test_missing_credentials_are_refused_with_what_to_set(environment: pytest.MonkeyPatch) -> None:
    environment.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(OSError, match="AWS_ACCESS_KEY_ID"):
        Account()


@pytest.mark.filterwarnings("ignore:Fetching the endpoint_resolver component")
@pytest.mark.parametrize("service", ["dynamodb", "s3"])
def test_the_endpoint_in_every_region_is_that_of_botocore(service: str) -> None:
    """The table of domains must be right for every region that botocore knows, in all partitions."""
    session = get_session()
    resolver = session.get_component("endpoint_resolver")
    regions = [
        region
        for partition in session.get_available_partitions()
        for region in session.get_available_regions(service, partition)
    ]
    assert {"us-east-1", "cn-north-1", "us-gov-west-1"} < {*regions}
    for region in [*regions, "eu-new-9"]:
        expected = f"https://{resolver.construct_endpoint(service, region)['hostname']}"
        assert Account(region).endpoint(service) == expected, region


def test_an_endpoint_in_the_environment_wins_over_that_of_the_region(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ENDPOINT_URL", "http://both:1/")
    assert Account().service("s3").endpoint == "http://both:1"
    environment.setenv("AWS_ENDPOINT_URL_S3", "http://s3:2")
    assert (Account().service("s3").endpoint, Account().service("dynamodb").endpoint) == (
        "http://s3:2",
        "http://both:1",
    )
    assert Account().service("s3", "http://named:3").endpoint == "http://named:3"

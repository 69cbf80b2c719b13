"""boto3 finds the local services, whatever else the environment says."""

from __future__ import annotations

from contextlib import closing

import boto3
import pytest

from tidemark.local.emulators import environment_for


@pytest.mark.parametrize("service", ["dynamodb", "s3", "sqs"])
def test_boto3_follows_the_variables(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment_for({service: "http://127.0.0.1:1234"}, {}).items():
        monkeypatch.setenv(name, value)
    with closing(boto3.client(service)) as made:
        assert made.meta.endpoint_url == "http://127.0.0.1:1234"


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"])
def test_placeholder_credentials_are_set_only_if_there_are_none(name: str) -> None:
    assert "AWS_SECRET_ACCESS_KEY" in environment_for({}, {})
    assert "AWS_SECRET_ACCESS_KEY" not in environment_for({}, {name: "given"})


@pytest.mark.parametrize(
    ("environment", "region"),
    [
        ({}, "us-east-1"),
        ({"AWS_REGION": "eu-west-1"}, "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-2"),
    ],
)
def test_both_region_variables_are_set_from_either(environment: dict[str, str], region: str) -> None:
    added = environment_for({}, environment)
    assert (added["AWS_REGION"], added["AWS_DEFAULT_REGION"]) == (region, region)


def test_a_proxy_is_not_used_for_a_loopback_address() -> None:
    """botocore would send even 127.0.0.1 to HTTP_PROXY."""
    environment = environment_for({}, {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "intranet"})
    assert environment["NO_PROXY"] == "intranet,127.0.0.1,localhost"
    assert "NO_PROXY" not in environment_for({}, {"PATH": "/bin"})

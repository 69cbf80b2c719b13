"""The user's own endpoints are used as they are, and boto3 finds the others."""

from __future__ import annotations

from contextlib import closing

import boto3
import pytest

from tidemark.local.endpoints import VARIABLES, environment_for, has_own_endpoint

OWN = "http://tables.example:8000"


@pytest.mark.parametrize(
    ("environment", "own"),
    [
        ({}, set()),
        ({"AWS_ENDPOINT_URL_S3": OWN}, {"s3"}),
        ({"AWS_ENDPOINT_URL_SQS": ""}, set()),
        ({"AWS_ENDPOINT_URL_DYNAMODB": OWN}, {"dynamodb", "streams"}),
        ({"AWS_ENDPOINT_URL_DYNAMODB_STREAMS": OWN}, {"streams"}),
        ({"AWS_ENDPOINT_URL": OWN}, {"dynamodb", "streams", "s3", "sqs"}),
    ],
)
def test_a_service_with_an_endpoint_variable_counts_as_the_users_own(
    environment: dict[str, str], own: set[str]
) -> None:
    assert {name for name in VARIABLES if has_own_endpoint(name, environment)} == own


@pytest.mark.parametrize(
    ("service", "client"),
    [("dynamodb", "dynamodb"), ("streams", "dynamodbstreams"), ("s3", "s3"), ("sqs", "sqs")],
)
def test_boto3_follows_the_variables(service: str, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment_for({service: "http://127.0.0.1:1234"}, {}).items():
        monkeypatch.setenv(name, value)
    with closing(boto3.client(client)) as made:
        assert made.meta.endpoint_url == "http://127.0.0.1:1234"


def test_dynamodb_streams_uses_the_endpoint_of_the_users_dynamodb() -> None:
    """An emulator serves both at one address."""
    environment = environment_for({}, {"AWS_ENDPOINT_URL_DYNAMODB": OWN})
    assert environment[VARIABLES["streams"]] == OWN


def test_aws_has_a_separate_endpoint_for_dynamodb_streams() -> None:
    own = {"AWS_ENDPOINT_URL_DYNAMODB": "https://dynamodb.eu-west-1.amazonaws.com"}
    assert VARIABLES["streams"] not in environment_for({}, own)


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

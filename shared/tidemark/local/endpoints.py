"""The environment that leads boto3 to the local services."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Service name here → the variable boto3 reads.
VARIABLES: Final = {
    "dynamodb": "AWS_ENDPOINT_URL_DYNAMODB",
    "s3": "AWS_ENDPOINT_URL_S3",
    "sqs": "AWS_ENDPOINT_URL_SQS",
}
#: Any of these says that there are credentials, whatever kind.
CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
)
DUMMY_CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "tidemark", "AWS_SECRET_ACCESS_KEY": "tidemark"}
DEFAULT_REGION: Final = "us-east-1"


def environment_for(endpoints: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that lead boto3 to `endpoints` (service → URL), to be added to `environment`."""
    added = {VARIABLES[service]: url for service, url in endpoints.items()}
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
    added["AWS_REGION"] = region
    added["AWS_DEFAULT_REGION"] = environment.get("AWS_DEFAULT_REGION") or region
    if not any(environment.get(name) for name in CREDENTIALS):
        added |= DUMMY_CREDENTIALS
    if {name.lower() for name, value in environment.items() if value} & {"http_proxy", "all_proxy"}:
        # botocore would ask a proxy even for a loopback address.
        bypassed = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
        value = ",".join(filter(None, (bypassed, "127.0.0.1", "localhost")))
        added |= {"no_proxy": value, "NO_PROXY": value}
    return added


def credentials_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The credentials that clients will sign with, as far as the environment tells: an emulator that verifies
    presigned URLs must know it."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    given = {name: environment[name] for name in names if environment.get(name)}
    return given if any(environment.get(name) for name in CREDENTIALS) else dict(DUMMY_CREDENTIALS)

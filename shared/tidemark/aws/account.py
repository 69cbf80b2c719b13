"""Region, credentials and endpoints, found as boto3 finds them.

Lambda has region and credentials in its environment. botocore takes a cold start about 150 ms, so it is
imported only where the environment does not say: profiles, container roles, refreshed credentials, regions
with other domain names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from tidemark.aws.sigv4 import Credentials, Service

#: Regions by their names, and the domain of their services. Every other one is left to botocore.
_DOMAINS: Final = (
    (re.compile(r"(us|eu|ap|sa|ca|me|af|il|mx|us-gov)-[a-z]+-\d+"), "amazonaws.com"),
    (re.compile(r"cn-[a-z]+-\d+"), "amazonaws.com.cn"),
)


class EnvironmentCredentials(NamedTuple):
    access_key: str
    secret_key: str
    token: str | None


def credentials_in(environment: Mapping[str, str]) -> EnvironmentCredentials | None:
    """The credentials in the environment that do not expire while the process lives; None if there are
    none."""
    access_key = environment.get("AWS_ACCESS_KEY_ID")
    secret_key = environment.get("AWS_SECRET_ACCESS_KEY")
    if not access_key or not secret_key or environment.get("AWS_CREDENTIAL_EXPIRATION"):
        return None
    token = environment.get("AWS_SECURITY_TOKEN") or environment.get("AWS_SESSION_TOKEN")
    return EnvironmentCredentials(access_key, secret_key, token or None)


class Account:
    """Region and credentials, looked up once for all services.

    Raises RuntimeError if there are no credentials.
    """

    def __init__(self, region: str | None = None) -> None:
        configured = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        self.region: str = configured or self._session.get_config_variable("region") or "us-east-1"
        self._credentials: Callable[[], Credentials]
        fixed = credentials_in(os.environ)
        if fixed is not None:
            self._credentials = lambda: fixed
            return
        found = self._session.get_credentials()
        if found is None:
            raise RuntimeError("No AWS credentials were found; set AWS_ACCESS_KEY_ID or a profile")
        self._credentials = found.get_frozen_credentials

    def dynamodb(self, endpoint: str | None = None) -> Service:
        return self._service("dynamodb", endpoint)

    def s3(self, endpoint: str | None = None) -> Service:
        return self._service("s3", endpoint)

    def endpoint(self, name: str) -> str:
        """The endpoint of a service, by botocore's name for it."""
        named = os.environ.get(f"AWS_ENDPOINT_URL_{name.upper()}") or os.environ.get("AWS_ENDPOINT_URL")
        if named:
            return named
        for regions, domain in _DOMAINS:
            if regions.fullmatch(self.region):
                return f"https://{name}.{self.region}.{domain}"
        endpoint: str = self._session.create_client(name, region_name=self.region).meta.endpoint_url
        return endpoint

    @cached_property
    def _session(self) -> Any:
        from botocore.session import get_session

        return get_session()

    def _service(self, name: str, endpoint: str | None) -> Service:
        return Service(name, self.region, endpoint or self.endpoint(name), self._credentials)

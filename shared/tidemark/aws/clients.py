"""boto3's clients, for rare calls. boto3 is imported and each client is created at its first use, because
both cost a cold start as much as several requests. (Frequent calls go through `aws/http.py`.)"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import urllib3

from tidemark.aws.http import has_tag, missing
from tidemark.aws.retry import NoAnswer
from tidemark.aws.s3 import Refusal
from tidemark.observability.metrics import PROCESS, STORAGE_CALLS

#: Arguments of botocore's Config. Every call may be repeated, so timeouts are short.
CLIENT_SETTINGS: Final[dict[str, Any]] = {
    "connect_timeout": 2,
    "read_timeout": 20,
    "max_pool_connections": 64,
    "parameter_validation": False,
    "user_agent": "tidemark",
}
#: For calls within a request: three attempts end before an HTTP API times out after 30 s.
_PROMPT: Final[dict[str, Any]] = {"read_timeout": 6, "retries": {"mode": "standard", "total_max_attempts": 3}}

#: S3 operations whose reply always has the entity tag of an object or a part.
_TAGGED: Final = frozenset({"GetObject", "PutObject", "UploadPart"})

#: boto3's session cannot safely create two clients at once.
_making: Final = threading.Lock()


def make_client(service: str, **settings: Any) -> Any:
    """Create a client. `settings` of botocore's Config override CLIENT_SETTINGS."""
    import boto3
    from botocore.config import Config

    with _making:
        client = boto3.client(service, config=Config(**CLIENT_SETTINGS | settings))
    refuse_cut_replies(client)
    return client


def refuse_cut_replies(client: Any) -> None:
    """Make a boto3 client repeat a call whose reply is incomplete. By default boto3 accepts a reply that ends
    inside the headers as an empty success."""
    client.meta.events.register("before-parse", _refuse_cut_reply)
    # Handlers of one service run before handlers of all services.
    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register_first(f"needs-retry.{service}", _retry_cut_reply)


@contextmanager
def s3_failures() -> Iterator[None]:
    """Raise boto3's errors about a call to S3 as Refusal and NoAnswer."""
    try:
        yield
    except Exception as error:
        from botocore import exceptions
        from botocore.parsers import ResponseParserError

        if isinstance(error, exceptions.ClientError):
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = error.response.get("Error", {}).get("Code", "")
            raise Refusal(error.operation_name, status, code) from error
        no_answer = (
            exceptions.ConnectionError,
            exceptions.HTTPClientError,
            exceptions.IncompleteReadError,
            exceptions.FlexibleChecksumError,
            ResponseParserError,
            urllib3.exceptions.HTTPError,  # An error's body was cut: botocore does not translate it.
        )
        if isinstance(error, no_answer):
            raise NoAnswer(str(error)) from error
        raise


def _refuse_cut_reply(operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
    """Treat an incomplete reply as an internal error of the service, as botocore itself does for an error
    inside a 200. (The reply to a HEAD cannot be checked: get the first byte instead.)

    The body of an object is read later; botocore then compares its length.
    """
    headers, body = response_dict["headers"], response_dict["body"]
    if isinstance(body, bytes):
        lack = missing(headers, body) if response_dict["status_code"] != 204 else None
    else:
        lack = None if headers.get("content-length", "").isdecimal() else "the object's size"
    if operation_model.name in _TAGGED and response_dict["status_code"] < 300 and not has_tag(headers):
        lack = "the entity tag"
    if lack is not None:
        if not isinstance(body, bytes):
            body.close()  # The body is not read.
        response_dict |= {"status_code": 500, "body": b""}


def _retry_cut_reply(response: Any, **_: Any) -> None:
    """Copy the parsed status to the reply, because it decides about a retry."""
    if response is not None:
        http, parsed = response
        http.status_code = parsed["ResponseMetadata"].get("HTTPStatusCode", http.status_code)


def s3_client() -> Any:
    # Path style, so that a local endpoint needs no host name for the bucket. The body of a presigned URL is
    # not known yet, so the URL must not contain a checksum of an empty body.
    s3 = make_client(
        "s3",
        **_PROMPT,
        s3={"addressing_style": "path"},
        signature_version="s3v4",
        request_checksum_calculation="when_required",
    )

    def count(event_name: str, **_: Any) -> None:
        PROCESS.add(STORAGE_CALLS, 1, (event_name.rpartition(".")[2],))

    s3.meta.events.register("before-send.s3", count)
    return s3


class ParameterUnavailable(OSError):
    """A parameter cannot be read or changed. The message names the parameter and does not quote its value."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        #: Whether the account exceeds SSM's rate limit (40 requests a second, unless raised).
        self.throttled = code == "ThrottlingException"


@dataclass(frozen=True, slots=True)
class Parameters:
    """Encrypted texts in SSM's parameter store, under names that begin with `prefix`. Raises
    ParameterUnavailable."""

    prefix: str = ""

    def load(self, name: str) -> str:
        with _ssm(f"The parameter {self.prefix + name} cannot be read") as ssm:
            found = ssm.get_parameter(Name=self.prefix + name, WithDecryption=True)
            value: str = found["Parameter"]["Value"]
        return value

    def save(self, name: str, value: str) -> None:
        """Write a new parameter. Raises ParameterUnavailable also if it exists."""
        with _ssm(f"The parameter {self.prefix + name} cannot be written") as ssm:
            ssm.put_parameter(Name=self.prefix + name, Value=value, Type="SecureString", Overwrite=False)

    def remove(self, name: str) -> None:
        with _ssm(f"The parameter {self.prefix + name} cannot be removed") as ssm:
            # Unlike DeleteParameter, this call accepts a missing parameter.
            ssm.delete_parameters(Names=[self.prefix + name])


load_parameter: Final = Parameters().load


@contextmanager
def _ssm(what: str) -> Iterator[Any]:
    """Yield a client, whose errors are raised as ParameterUnavailable with the failed operation and code."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield make_client("ssm", **_PROMPT)
    except ClientError as refused:
        code = refused.response["Error"]["Code"]
        raise ParameterUnavailable(f"{what}: {code}", code) from None
    except BotoCoreError as failure:
        raise ParameterUnavailable(f"{what}: {type(failure).__name__}") from None

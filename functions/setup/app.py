"""The `setup` function, which CloudFormation calls while it creates, changes or deletes a stack.

`Custom::OriginSecret` draws a random number. `Custom::Setup` draws the secret for tokens if there is none.
The deployment fails with a message before another function changes, if the release cannot read the table, a
secret is gone, the proxy may not read a key, or a reservation is beyond the account's limit: a template
cannot check these.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final

import boto3
from botocore.exceptions import ClientError

from tidemark.log.schema import FORMAT_EPOCH, FORMAT_KEY, decode_format

#: Concurrent executions that Lambda keeps for functions without a reservation.
_UNRESERVABLE: Final = 100
#: Seconds between tries: a right that this deployment has given the role holds some seconds later.
_PAUSES: Final = (1, 2, 4, 8)
#: Fewest executions worth a reservation: with fewer, plain reads lose more than the other functions gain.
_WORTH_RESERVING: Final = 25


#: Regions in which Lambda has no function URLs, by its documentation of 2026.
_WITHOUT_URLS: Final = (
    "ap-east-2", "ap-south-2", "ap-southeast-4", "ap-southeast-5", "ap-southeast-6", "ap-southeast-7",
    "ca-west-1", "eu-central-2", "eu-south-2", "il-central-1", "me-central-1",
)  # fmt: skip


class Refused(Exception):
    """The message has the reason and the remedy. CloudFormation shows it as the reason of the failure."""


def handler(event: Mapping[str, Any], _context: Any) -> None:
    """Send the answer to the request's ResponseURL, as a custom resource must."""
    answer = {name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")}
    # Keep the name: if it changed, CloudFormation would delete the earlier resource.
    answer["PhysicalResourceId"] = event.get("PhysicalResourceId") or f"setup-{secrets.token_hex(8)}"
    try:
        answer |= {"Status": "SUCCESS"} | answer_to(event)
    except Exception as failure:  # noqa: BLE001 - without an answer CloudFormation waits until its timeout
        answer |= {"Status": "FAILED", "Reason": str(failure)}
    # No content type, because the URL was signed without one.
    body, headers = json.dumps(answer).encode(), {"Content-Type": ""}
    request = urllib.request.Request(event["ResponseURL"], body, headers, method="PUT")  # noqa: S310
    with urllib.request.urlopen(request, timeout=20):  # noqa: S310 - CloudFormation's own address
        pass


def answer_to(event: Mapping[str, Any]) -> dict[str, Any]:
    """The members of the answer after the status. Raises Refused."""
    if event["RequestType"] == "Delete":  # The secret stays: another stack may use it, now or later.
        return {}
    if event["ResourceType"] == "Custom::OriginSecret":
        return {"NoEcho": True, "Data": {"Value": secrets.token_hex(32)}}
    now, before = event["ResourceProperties"], event.get("OldResourceProperties", {})
    if table := table_of(boto3.client("cloudformation"), event["StackId"]):
        check_format(dynamodb := boto3.client("dynamodb"), table)
        if now.get("TableUnitsPerSecond") == "0" and before.get("TableUnitsPerSecond", "0") != "0":
            take_ceiling_off(dynamodb, table)
    return {"Data": set_up(now, before, boto3.client)}


def table_of(cloudformation: Any, stack: str) -> str | None:
    """The stack's table, or None if there is none yet: a refused creation then leaves no protected table."""
    pauses = iter(_PAUSES)
    while True:
        try:
            found = cloudformation.describe_stack_resource(StackName=stack, LogicalResourceId="Table")
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code == "ValidationError":  # There is no such resource.
                return None
            if code != "AccessDenied" or (pause := next(pauses, None)) is None:
                raise
            time.sleep(pause)
        else:
            name: str | None = found["StackResourceDetail"].get("PhysicalResourceId")
            return name


def set_up(now: Mapping[str, str], before: Mapping[str, str], client: Callable[[str], Any]) -> dict[str, str]:
    """The attributes of `Custom::Setup` with the properties `now`, which were `before`. Raises Refused."""
    if name := now["AuthSecretName"]:
        ensure_secret(client("ssm"), name, before.get("AuthSecretName", ""))
    check_upstream_keys(now["ProxyAllow"], now["ProxyKeys"])
    key = now["CacheKey"]
    check_region(os.environ["AWS_REGION"], needs_url=bool(key) or int(now["WriterConcurrency"]) > 0)
    policy = share_cache_policy(client("cloudfront"), is_private=key == "private") if key else ""
    limits = client("lambda").get_account_settings()["AccountLimit"]
    digest = hashlib.sha256(json.dumps(now, sort_keys=True).encode()).hexdigest()[:16]
    readers = readers_of(limits, reserved_by(now), reserved_by(before))
    return {"Readers": readers, "Digest": digest, "CachePolicyId": policy}


def check_format(dynamodb: Any, table: str) -> None:
    """Raises Refused if this release is too old for the table's format, and would serve it as data."""
    asked = {"TableName": table, "Key": FORMAT_KEY, "ConsistentRead": True}
    least = decode_format(dynamodb.get_item(**asked).get("Item"))
    if least > FORMAT_EPOCH:
        raise Refused(
            f"This release reads format {FORMAT_EPOCH}, and the table needs {least}: there is no way back to "
            "this release (docs/internals/packs.md). No function was changed."
        )


def take_ceiling_off(dynamodb: Any, table: str) -> None:
    """DynamoDB keeps a ceiling until -1 is set, and CloudFormation's schema has no such value."""
    known = dynamodb.describe_table(TableName=table)["Table"].get("OnDemandThroughput", {})
    if max(known.values(), default=-1) > 0:
        none = dict.fromkeys(("MaxReadRequestUnits", "MaxWriteRequestUnits"), -1)
        dynamodb.update_table(TableName=table, OnDemandThroughput=none)
        dynamodb.get_waiter("table_exists").wait(
            TableName=table, WaiterConfig={"Delay": 2, "MaxAttempts": 12}
        )


def ensure_secret(ssm: Any, name: str, before: str) -> None:
    """Draw a secret if there is none. An existing secret is never overwritten. Raises Refused if a stack with
    the secret `before` names another one that does not exist: a new secret would end every token."""
    try:
        ssm.get_parameter(Name=name)
    except ClientError as error:
        if error.response["Error"]["Code"] != "ParameterNotFound":
            raise
        if before:
            raise Refused(
                f"AuthSecretName must name an SSM parameter, and there is no {name}. Make it: aws ssm "
                f"put-parameter --name {name} --type SecureString --value $(openssl rand -hex 32). "
                f"To keep the tokens of this stack: AuthSecretName={before}"
            ) from None
        ssm.put_parameter(Name=name, Type="SecureString", Value=secrets.token_hex(32), Overwrite=False)


def check_region(region: str, *, needs_url: bool) -> None:
    """Raises Refused if a function of the stack needs a URL and Lambda has none in the region."""
    if needs_url and region in _WITHOUT_URLS:
        raise Refused(
            f"Lambda has no function URLs in {region}, and CloudFront and WriterUrl need one. Deploy with "
            "Edge=false and WriterConcurrency=0, or in another region."
        )


def check_upstream_keys(allow: str, folder: str) -> None:
    """Raises Refused if `allow` names a key outside `folder`: the proxy's role may not read it."""
    for name in re.findall(r"\bkey=ssm:([^\s,]+)", allow):
        if not name.startswith(folder):
            raise Refused(
                f"ProxyAllow names the key {name}, and this stack's proxy reads parameters below {folder} "
                f"alone. Copy it to {folder}{name.rpartition('/')[2]}, and name that in ProxyAllow."
            )


def cache_key(*, is_private: bool) -> dict[str, Any]:
    """The values that distinguish one response from another: the query, because CloudFront takes at most ten
    names of parameters and there are more, and each place of a token unless everybody may read. A cookie
    would keep requests from being collapsed. The application decides how long a response is cached."""
    headers, query = [], {"QueryStringBehavior": "allExcept", "QueryStrings": listed(["access_token"])}
    if is_private:
        headers, query = ["Authorization", "X-Tidemark-Authorization"], {"QueryStringBehavior": "all"}
    return {
        "MinTTL": 0,
        "DefaultTTL": 0,
        "MaxTTL": 31536000,
        "ParametersInCacheKeyAndForwardedToOrigin": {
            "EnableAcceptEncodingGzip": True,
            "EnableAcceptEncodingBrotli": True,
            "CookiesConfig": {"CookieBehavior": "none"},
            "HeadersConfig": {"HeaderBehavior": "whitelist", "Headers": listed(headers)}
            if headers
            else {"HeaderBehavior": "none"},
            "QueryStringsConfig": query,
        },
    }


def listed(names: list[str]) -> dict[str, Any]:
    return {"Quantity": len(names), "Items": names}


def share_cache_policy(cloudfront: Any, *, is_private: bool) -> str:
    """The id of the account's policy, which all stacks share: an account has twenty. The name has a digest of
    the content, so a release with another content makes another policy, and no policy is ever changed."""
    content = cache_key(is_private=is_private)
    name = f"tidemark-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]}"
    for each in cloudfront.list_cache_policies(Type="custom")["CachePolicyList"].get("Items", []):
        if each["CachePolicy"]["CachePolicyConfig"]["Name"] == name:
            return str(each["CachePolicy"]["Id"])
    made = cloudfront.create_cache_policy(CachePolicyConfig={"Name": name, **content})
    return str(made["CachePolicy"]["Id"])


def reserved_by(properties: Mapping[str, str]) -> tuple[int, int]:
    """The concurrent executions that functions reserve: those of readers (`read`, `live`, `socket`), and
    those of others."""
    readers, writers, proxy = (
        int(properties.get(f"{name}Concurrency", "0")) for name in ("Reader", "Writer", "Proxy")
    )
    return (3 if properties.get("Sockets") == "true" else 2) * readers, writers + 2 * proxy


def readers_of(limits: Mapping[str, int], reserved: tuple[int, int], before: tuple[int, int]) -> str:
    """A message on the account's limit and waiting readers. Raises Refused for more than can be reserved."""
    limit = limits["ConcurrentExecutions"]
    room = limits.get("UnreservedConcurrentExecutions", limit) + sum(before) - _UNRESERVABLE
    readers, others = reserved
    if (now := sum(reserved)) > max(room, 0):
        raise Refused(
            f"ReaderConcurrency, WriterConcurrency and ProxyConcurrency would reserve {now} concurrent "
            f"executions, and this account can reserve {max(room, 0)} (100 stay for functions without a "
            f"reservation). Lower them, or ask for more: {_ASK_FOR_MORE}"
        )
    if readers:
        return f"At most {readers} of the account's {limit} concurrent executions are taken by readers."
    # At most half of the account for the three functions that readers reach.
    each = min(limit // 2, room - others) // 3
    advice = f"Bound them: ReaderConcurrency={each}"
    if each < _WORTH_RESERVING:
        advice = (
            "Too few are left for a reservation: let readers wait for seconds only (SseSeconds=5), "
            f"and ask for more, which is free: {_ASK_FOR_MORE}"
        )
    return (
        f"This account runs {limit} functions at once. A waiting reader takes one, so {limit} waiting "
        f"readers stop every writer. {advice}"
    )


_ASK_FOR_MORE: Final = (
    "aws service-quotas request-service-quota-increase --service-code lambda --quota-code L-B99A9384 "
    "--desired-value 1000"
)
